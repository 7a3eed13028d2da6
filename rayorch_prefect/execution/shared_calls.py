"""What is on its way to workers: batches that wait to share a call, and the calls themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rayorch_prefect.execution.wire import Packed

# What one call carries beside its first batch, and may bring back: Ray stores larger ones beside.
MOST_BYTES = 64 * 1024
# One runs and one waits.
_CALLS_AT_WORKER = 2

# (worker, its batches' numbers, their messages)
SendTogether: TypeAlias = Callable[[int, Sequence[int], Sequence[Packed]], None]


@dataclass(slots=True)
class _Worker:
    calls: deque[int] = field(default_factory=deque[int])
    batches: list[int] = field(default_factory=list[int])
    packed: list[Packed] = field(default_factory=list[Packed])
    size: int = 0


class SharedCalls:
    """Owner of what workers are sent. A call leaves when it is full, or its worker has fewer than
    two."""

    def __init__(self, send: SendTogether) -> None:
        self._send = send
        self._workers: dict[int, _Worker] = {}
        self._waiting: dict[int, None] = {}

    def add(self, worker: int, batch: int, packed: Packed, most: int) -> None:
        """A batch that may share a call with so many."""
        one = self._workers.setdefault(worker, _Worker())
        if one.batches and one.size + len(packed) > MOST_BYTES:
            self.leave(worker)
        one.batches.append(batch)
        one.packed.append(packed)
        one.size += len(packed)
        self._waiting[worker] = None
        if len(one.batches) >= most:
            self.leave(worker)

    def leave(self, worker: int) -> None:
        """What waits for a worker leaves now, as what comes next is not to pass it."""
        self._waiting.pop(worker, None)
        one = self._workers.get(worker)
        if one is None or not one.batches:
            return
        batches, packed = one.batches, one.packed
        one.batches, one.packed, one.size = [], [], 0
        self._send(worker, batches, packed)

    def flush(self) -> None:
        """What waits for workers that have little else leaves now."""
        for worker in [
            worker
            for worker in self._waiting
            if len(self._workers[worker].calls) < _CALLS_AT_WORKER
        ]:
            self.leave(worker)

    def sent(self, worker: int, batches: int) -> None:
        """A call with so many batches is on its way."""
        self._workers.setdefault(worker, _Worker()).calls.append(batches)

    def over(self, worker: int) -> None:
        """A worker's oldest call has ended."""
        one = self._workers.get(worker)
        if one is not None and one.calls:
            one.calls.popleft()

    def shares(self, worker: int) -> bool:
        """Whether it cannot be told which batch a worker was at: its oldest call has several."""
        one = self._workers.get(worker)
        return one is not None and bool(one.calls) and one.calls[0] > 1

    def forget(self, worker: int) -> None:
        """A worker is gone, with all that was on its way."""
        self._workers.pop(worker, None)
        self._waiting.pop(worker, None)
