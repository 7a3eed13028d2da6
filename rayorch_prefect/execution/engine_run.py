"""One microbatch in an Engine, as its owner sees it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from rayorch_prefect.execution.parent import Parent


class Run:
    """Iterates over the parents in the order they complete. Several threads may iterate.

    Raises, in every thread that iterates, what ended the Engine if it ends before the run. After
    `abandon` iteration ends with the parents that had come.
    """

    def __init__(self, rows: int, abandon: Callable[[Run], None]) -> None:
        self.rows = rows
        self.number = -1
        self._taken = 0
        self._lock = threading.Lock()
        # None ends an abandoned run.
        self._parents: queue.SimpleQueue[Parent | BaseException | None] = queue.SimpleQueue()
        self._abandon = abandon

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Parent:
        with self._lock:
            if self._taken == self.rows:
                raise StopIteration
            self._taken += 1
        parent = self._parents.get()
        if isinstance(parent, Parent):
            return parent
        self._parents.put(parent)  # for the other threads
        raise StopIteration if parent is None else parent

    def deliver(self, parent: Parent | BaseException) -> None:
        """Called by the Engine for each parent, or once with what ended it."""
        self._parents.put(parent)

    def abandon(self) -> None:
        """Want nothing more of this run: nothing of it is started any more."""
        self._abandon(self)
        self._parents.put(None)
