"""Workers and what each has in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.program.plan import Plan

STARTS_THAT_MAY_FAIL = 3


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch at a worker. `generations` maps rows whose Grain was tried before."""

    batch: int
    call: int
    worker: int
    rows: int
    ranges: tuple[EntityRange, ...]
    generations: Mapping[int, int]


class Workers:
    """Owner of worker slots: which are idle, which batch each of the others has."""

    def __init__(self, plan: Plan) -> None:
        pools = len(plan.pools)
        self.starting = [0] * pools
        self.idle: list[deque[int]] = [deque() for _ in range(pools)]
        self.pool_of: dict[int, int] = {}
        self.flight_of: dict[int, int] = {}
        self.flights: dict[int, Flight] = {}
        self.started: set[int] = set()
        self.failed_starts = [0] * pools
        self.gone: set[int] = set()

    def ready(self, worker: int, pool: int) -> None:
        """A worker that was asked for is there and idle."""
        self.starting[pool] -= 1
        self.pool_of[worker] = pool
        self.idle[pool].append(worker)

    def take_off(self, flight: Flight) -> None:
        """An idle worker gets a batch."""
        pool = self.pool_of[flight.worker]
        self.idle[pool].remove(flight.worker)
        self.flights[flight.batch] = flight
        self.flight_of[flight.worker] = flight.batch
        self.started.add(flight.worker)
        self.failed_starts[pool] = 0

    def land(self, batch: int) -> Flight:
        """A batch has come back; its worker is idle again."""
        flight = self.flights.pop(batch)
        del self.flight_of[flight.worker]
        self.idle[self.pool_of[flight.worker]].append(flight.worker)
        return flight

    def lose(self, worker: int, pool: int) -> Flight | None:
        """A worker is gone; returns the batch it had. A worker that never started counts."""
        self.gone.add(worker)
        if worker not in self.pool_of:
            self.starting[pool] -= 1
            self.failed_starts[pool] += 1
            return None
        del self.pool_of[worker]
        if worker not in self.started:
            self.failed_starts[pool] += 1
        self.started.discard(worker)
        batch = self.flight_of.pop(worker, None)
        if batch is None:
            self.idle[pool].remove(worker)
            return None
        return self.flights.pop(batch)

    def never_starts(self, pool: int) -> bool:
        """Whether too many workers of the pool died in a row before their first start."""
        return self.failed_starts[pool] >= STARTS_THAT_MAY_FAIL
