"""All that waits for a time: limits of batches and rows, Calls that are paused or linger."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from itertools import islice

from rayorch_prefect.execution.backend import WorkerIsAt
from rayorch_prefect.execution.deadlines import Deadlines, RowDeadlines, Running
from rayorch_prefect.execution.pauses import Pauses
from rayorch_prefect.model.events import DeadlinePassed, Event, LingerCall, LingerPassed
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.workers import Workers


class Clocks:
    """Owner of the driver's timers; times in its seconds.

    `parked` are batches whose inputs are not there yet; by `makes_again(worker)` a worker is at
    what is no batch of the scheduler's.
    """

    def __init__(
        self,
        plan: Plan,
        workers: Workers,
        parked: Collection[int],
        makes_again: Callable[[int], bool],
    ) -> None:
        self.pauses = Pauses(plan)
        self._plan = plan
        self._workers = workers
        self._parked = parked
        self._makes_again = makes_again
        self._batches = Deadlines(plan)
        self._rows = RowDeadlines(plan)
        self._lingers: dict[int, tuple[float, int]] = {}

    @property
    def next(self) -> float:
        """When `due` has something to say, at the earliest; infinity if never."""
        lingers = min((due for due, _ in self._lingers.values()), default=math.inf)
        return min(self._batches.next, self._rows.next, self.pauses.next, lingers)

    def due(self, now: float) -> tuple[list[Event], list[Running]]:
        """What is to be said to the scheduler now, and workers to be looked at."""
        late, suspects = self._batches.due(now)
        events: list[Event] = [DeadlinePassed(running.batch, running.worker) for running in late]
        events += [DeadlinePassed(batch, worker) for worker, batch in self._rows.due(now)]
        events += self.pauses.due(now)
        for call in [call for call, (due, _) in self._lingers.items() if due <= now]:
            events.append(LingerPassed(call, self._lingers.pop(call)[1]))
        return events, suspects

    def linger(self, asked: LingerCall, now: float) -> None:
        """A Call waits for a fuller batch; an earlier wait of it is over."""
        seconds = self._plan.pools[self._plan.calls[asked.call].pool].linger_s or 0.0
        self._lingers[asked.call] = (now + seconds, asked.turn)

    def seen(self, seen: WorkerIsAt, now: float) -> DeadlinePassed | None:
        """A worker was found at a place: whether its row is at its limit."""
        row = self._batches.seen(seen.worker, seen.batch, seen.place, now)
        return None if row is None else DeadlinePassed(seen.batch, seen.worker, row)

    def watch(self, worker: int, now: float) -> None:
        """Other batches may have started at a worker, or none is there."""
        held = self._workers.held.get(worker)
        pool = self._workers.pool_of.get(worker)
        if pool is None or not held:
            self._batches.stops(worker)
        elif self._rows.limited(pool):
            there = islice(held, self._plan.pools[pool].concurrency)
            started = [batch for batch in there if batch not in self._parked]
            self._rows.runs(worker, pool, started, now)
        elif held[0] in self._parked:
            self._batches.stops(worker)
        elif self._makes_again(worker) and not self._batches.knows(worker, held[0]):
            self._batches.stops(worker)  # it waits for what is made again there
        elif self._batches.limited(pool):
            rows = self._workers.flights[held[0]].rows
            self._batches.runs(worker, pool, held[0], rows, now)

    def forget(self, batch: int) -> None:
        """A batch is at no worker any more."""
        self._rows.stops(batch)
