"""Timers for stages with limits: when to look at which worker.

A batch's clock runs while it is the oldest at its worker, and is the driver's. A row's clock is
its worker's (see `marker`): a timer only says when it is worth a look.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from rayorch_prefect.execution.marker import NO_ROW, Place
from rayorch_prefect.program.plan import Plan, Pool

LOOK_AGAIN_S = 1.0
# A row limit that nobody can look after holds for the batch as a whole, and this much more.
UNSEEN_S = 10.0


# A worker with several rows in flight ends those past their limit itself. One that does not, as
# its loop is held up, is given so much more.
NO_ANSWER_S = 10.0


@dataclass(slots=True)
class Running:
    """The oldest batch at a worker, with times in the timer's seconds."""

    worker: int
    batch: int
    pool: Pool
    rows: int
    began: float
    due: float

    @property
    def batch_end(self) -> float:
        """When the batch as a whole has taken too long."""
        own = self.pool.batch_limit_s
        row = self.pool.row_limit_s
        unseen = math.inf if row is None else row * self.rows + UNSEEN_S
        return self.began + (unseen if own is None else own)


class Deadlines:
    """Owner of the timers. Workers without limits cost nothing here."""

    def __init__(self, plan: Plan) -> None:
        self._limited = [
            pool.longest_row_s is not None and not pool.is_concurrent for pool in plan.pools
        ]
        self._pools = plan.pools
        self._running: dict[int, Running] = {}
        self._heap: list[tuple[float, int]] = []
        self._earliest: dict[int, float] = {}

    def limited(self, pool: int) -> bool:
        """Whether the pool's workers are watched."""
        return self._limited[pool]

    def stops(self, worker: int) -> None:
        """A worker holds no batch, or is gone."""
        self._running.pop(worker, None)

    def knows(self, worker: int, batch: int) -> bool:
        """Whether the batch's clock runs."""
        known = self._running.get(worker)
        return known is not None and known.batch == batch

    def runs(self, worker: int, pool: int, batch: int, rows: int, now: float) -> None:
        """A batch is the oldest at a worker: its clock runs from when that is first said."""
        if not self.knows(worker, batch):
            running = Running(worker, batch, self._pools[pool], rows, now, math.inf)
            self._running[worker] = running
            self._set(running, now + (running.pool.row_limit_s or math.inf))

    def _set(self, running: Running, due: float) -> None:
        running.due = min(due, running.batch_end)
        # A timer of the worker that is too early is set anew when it rings.
        if running.due < self._earliest.get(running.worker, math.inf):
            self._earliest[running.worker] = running.due
            heapq.heappush(self._heap, (running.due, running.worker))

    @property
    def next(self) -> float:
        """When `due` has something to say, at the earliest; infinity if never."""
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> tuple[list[Running], list[Running]]:
        """Batches that have taken too long, and those of which a row may have."""
        late: list[Running] = []
        suspects: list[Running] = []
        while self._heap and self._heap[0][0] <= now:
            rung, worker = heapq.heappop(self._heap)
            if self._earliest.get(worker) == rung:
                del self._earliest[worker]
            running = self._running.get(worker)
            if running is None:
                continue
            if running.batch_end <= now:
                late.append(self._running.pop(worker))
            elif running.due <= now:
                suspects.append(running)
                self._set(running, math.inf)
            else:
                self._set(running, running.due)
        return late, suspects

    def seen(self, worker: int, batch: int, place: Place | None, now: float) -> int | None:
        """A look at a worker: the row that is at its limit, or None and the timer is set."""
        running = self._running.get(worker)
        if running is None or running.batch != batch or running.pool.row_limit_s is None:
            return None
        limit = running.pool.row_limit_s
        if place is None:
            self._set(running, now + min(limit, LOOK_AGAIN_S))
            return None
        in_row = place.batch == batch and place.row != NO_ROW
        left = limit - place.row_s if in_row else limit
        if left <= 0:
            return place.row
        self._set(running, now + left)
        return None


class RowDeadlines:
    """Timers for rows of concurrent pools that have limits. A row's clock runs from when it has a
    place at its worker, as far as the driver knows."""

    def __init__(self, plan: Plan) -> None:
        self._limits = [pool.longest_row_s if pool.is_concurrent else None for pool in plan.pools]
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int, int]] = []

    def limited(self, pool: int) -> bool:
        """Whether the pool's rows are watched."""
        return self._limits[pool] is not None

    def runs(self, worker: int, pool: int, batches: Iterable[int], now: float) -> None:
        """These batches have a place at their worker; clocks run from when that is first said."""
        limit = self._limits[pool]
        for batch in batches:
            if limit is not None and batch not in self._due:
                self._set(worker, batch, now + limit + NO_ANSWER_S)

    def _set(self, worker: int, batch: int, due: float) -> None:
        self._due[batch] = due
        heapq.heappush(self._heap, (due, batch, worker))

    def stops(self, batch: int) -> None:
        """A batch is at no worker any more."""
        self._due.pop(batch, None)

    @property
    def next(self) -> float:
        """When `due` has something to say, at the earliest; infinity if never."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def due(self, now: float) -> list[tuple[int, int]]:
        """(worker, batch) of rows that their workers have not ended."""
        late: list[tuple[int, int]] = []
        while self.next <= now:
            _, batch, worker = heapq.heappop(self._heap)
            del self._due[batch]
            late.append((worker, batch))
        return late
