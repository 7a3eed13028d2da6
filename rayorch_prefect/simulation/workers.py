"""A worker in virtual time: batches one after another, those that wait can be taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rayorch_prefect.model.events import Bar
from rayorch_prefect.simulation.batch import Batch, Bench


class VirtualWorker:
    """`lane` counts the workers of one pool from 0."""

    __slots__ = ("bars", "free", "lane", "pool", "running", "waiting")

    def __init__(self, pool: int, lane: int) -> None:
        self.pool = pool
        self.lane = lane
        self.free = 0.0
        self.waiting: deque[Batch] = deque()
        self.running: Batch | None = None
        self.bars: dict[Bar, float] = {}

    def begin(self, bench: Bench, now: float, start_s: float) -> Batch | None:
        """Begin what waits longest, if nothing runs; the batch that has begun."""
        if self.running is not None or not self.waiting:
            return None
        batch = self.running = self.waiting.popleft()
        batch.begun = now + start_s
        bench.work(batch, self.bars)
        return batch

    def end(self, now: float) -> None:
        """The running batch is done; its GroupFailures are known here first."""
        batch = self.running
        assert batch is not None
        self.running = None
        if batch.failures:
            for segment in batch.segments:
                if segment.bar is not None and any(
                    segment.row <= row < segment.row + segment.n for row in batch.failures
                ):
                    self.bars.setdefault(segment.bar, now)

    def tell(self, bars: Sequence[Bar], bench: Bench, now: float) -> Batch | None:
        """Groups are barred from now on; the running batch if that changes its end."""
        for bar in bars:
            self.bars.setdefault(bar, now)
        batch = self.running
        if batch is None or not bench.stage.rowwise:
            return None
        before = batch.end
        bench.work(batch, self.bars)
        return batch if batch.end != before else None

    def take_back(self, number: int) -> bool:
        """Whether the batch has not begun; if so, it never will."""
        for batch in self.waiting:
            if batch.sent.batch == number:
                self.waiting.remove(batch)
                return True
        return False
