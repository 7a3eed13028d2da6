"""One microbatch in an Engine, as its owner sees it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rayorch_prefect.execution.parent import Parent


class Run:
    """Iterates over the parents in the order they complete. Several threads may iterate.

    Raises, in every thread that iterates, what ended the Engine if it ends before the run.
    """

    def __init__(self, rows: int, abandon: Callable[[Run], None]) -> None:
        self.rows = rows
        self.number = -1
        self._taken = 0
        self._lock = threading.Lock()
        self._parents: queue.SimpleQueue[Parent | BaseException] = queue.SimpleQueue()
        self._abandon = abandon

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Parent:
        with self._lock:
            if self._taken == self.rows:
                raise StopIteration
            self._taken += 1
        parent = self._parents.get()
        if isinstance(parent, BaseException):
            self._parents.put(parent)
            raise parent
        return parent

    def deliver(self, parent: Parent | BaseException) -> None:
        """Called by the Engine for each parent, or once with what ended it."""
        self._parents.put(parent)

    def abandon(self) -> None:
        """Want nothing more of this run: nothing of it is started any more."""
        self._abandon(self)
