"""Workers and what each has in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.program.plan import Plan, Pool

STARTS_THAT_MAY_FAIL = 3


class Seal(Enum):
    """Why a worker of a concurrent pool gets no further rows for now."""

    DRAINS = auto()  # it is to be empty for a company of suspects
    COMPANY = auto()  # it has one


class WorkerState(Enum):
    """What a worker may get."""

    STARTING = auto()
    IDLE = auto()
    HOLDS = auto()  # a batch or more; another where it has room
    DRAINS = auto()
    COMPANY = auto()
    WORN = auto()  # nothing more
    GONE = auto()


MOVES = {
    (WorkerState.STARTING, WorkerState.IDLE): "it is built",
    (WorkerState.STARTING, WorkerState.GONE): "it cannot be built, or died",
    (WorkerState.IDLE, WorkerState.HOLDS): "it gets a batch",
    (WorkerState.IDLE, WorkerState.COMPANY): "it is to get suspects, and no other rows",
    (WorkerState.HOLDS, WorkerState.IDLE): "its last batch came back",
    (WorkerState.HOLDS, WorkerState.DRAINS): "suspects need a worker, and none is empty",
    (WorkerState.DRAINS, WorkerState.IDLE): "its last batch came back",
    (WorkerState.COMPANY, WorkerState.IDLE): "its last suspect came back",
    (WorkerState.IDLE, WorkerState.WORN): "it has grown too large",
    (WorkerState.HOLDS, WorkerState.WORN): "it has had its batches, or grown too large",
    (WorkerState.DRAINS, WorkerState.WORN): "it has grown too large",
    (WorkerState.COMPANY, WorkerState.WORN): "it has had its batches, or grown too large",
    (WorkerState.WORN, WorkerState.GONE): "it holds nothing and is let go, or died",
    (WorkerState.IDLE, WorkerState.GONE): "it died",
    (WorkerState.HOLDS, WorkerState.GONE): "it died, or a deadline ended it",
    (WorkerState.DRAINS, WorkerState.GONE): "it died, or a deadline ended it",
    (WorkerState.COMPANY, WorkerState.GONE): "it died, or a deadline ended it",
}
"""What moves a worker. DRAINS and COMPANY are its seals."""


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
    """Owner of worker slots.

    A worker holds up to `most_held` batches, oldest first: with two, the next waits while one runs,
    so that the worker does not wait for the driver; more where they are short (`may_hold`). One of
    a concurrent pool has `places` for rows in flight, and holds a few more that wait for one. A
    worn one gets no further batch, nor does a sealed one until it holds nothing.
    """

    def __init__(self, plan: Plan, most_held: int) -> None:
        self.places = [pool.concurrency for pool in plan.pools]
        self.most = [
            pool.concurrency + _ahead(pool, most_held) if pool.is_concurrent else most_held
            for pool in plan.pools
        ]
        self._concurrent = [pool.is_concurrent for pool in plan.pools]
        self.sealed: dict[int, Seal] = {}
        pools = len(plan.pools)
        self.starting = [0] * pools
        self.idle: list[deque[int]] = [deque() for _ in range(pools)]
        self.spare: list[deque[int]] = [deque() for _ in range(pools)]
        self.pool_of: dict[int, int] = {}
        self.held: dict[int, deque[int]] = {}
        self.flights: dict[int, Flight] = {}
        self.announced: set[int] = set()
        self.asked_back: set[int] = set()
        self.started: set[int] = set()
        self.failed_starts = [0] * pools
        self._failed_with: list[set[str]] = [set() for _ in range(pools)]
        self.gone: set[int] = set()
        self.worn: set[int] = set()
        self.newly_worn: list[int] = []
        self._served: dict[int, int] = {}
        self._lives = [pool.recycle_after_batches for pool in plan.pools]

    def ready(self, worker: int, pool: int) -> None:
        """A worker that was asked for is there and idle."""
        self.starting[pool] -= 1
        self.pool_of[worker] = pool
        self.held[worker] = deque()
        self.idle[pool].append(worker)
        self._served[worker] = 0

    def may_hold(self, pool: int, most: int) -> None:
        """Workers of a pool, which is not concurrent, get up to so many batches from now on."""
        self.most[pool] = most
        self.spare[pool] = deque(
            worker
            for worker, held in self.held.items()
            if held and self.pool_of[worker] == pool and self._has_room(worker)
        )

    def state(self, worker: int) -> WorkerState:
        """Where a worker is; one that nothing is known of is being started."""
        if worker not in self.pool_of:
            return WorkerState.GONE if worker in self.gone else WorkerState.STARTING
        if worker in self.worn:
            return WorkerState.WORN
        if worker in self.sealed:
            return WorkerState[self.sealed[worker].name]
        return WorkerState.HOLDS if self.held[worker] else WorkerState.IDLE

    def take_off(self, flight: Flight) -> None:
        """A worker gets a batch."""
        worker = flight.worker
        pool = self.pool_of[worker]
        self._leave_slot(worker)
        self.held[worker].append(flight.batch)
        self._take_slot(worker)
        self.flights[flight.batch] = flight
        self.begins(worker)
        self._served[worker] += 1
        if self._served[worker] == self._lives[pool]:
            self.wear(worker)

    def begins(self, worker: int) -> None:
        """A worker gets something to do: its start did not fail."""
        if worker not in self.started:
            pool = self.pool_of[worker]
            self.started.add(worker)
            self.failed_starts[pool] = 0
            self._failed_with[pool].clear()

    def wear(self, worker: int) -> None:
        """The worker gets no further batch."""
        if worker in self.worn or worker not in self.pool_of:
            return
        self._leave_slot(worker)
        self.worn.add(worker)
        self.newly_worn.append(worker)

    def _has_room(self, worker: int) -> bool:
        """Whether it may get another batch."""
        blocked = worker in self.worn or worker in self.sealed
        return not blocked and len(self.held[worker]) < self.most[self.pool_of[worker]]

    def _slots(self, worker: int) -> deque[int]:
        """Where the worker stands while it has room."""
        return (self.spare if self.held[worker] else self.idle)[self.pool_of[worker]]

    def _take_slot(self, worker: int) -> None:
        if self._has_room(worker):
            self._slots(worker).append(worker)

    def _leave_slot(self, worker: int) -> None:
        if self._has_room(worker):
            self._slots(worker).remove(worker)

    def seal(self, worker: int, seal: Seal) -> None:
        """The worker gets nothing but what its seal is for, until it holds nothing."""
        self._leave_slot(worker)
        self.sealed[worker] = seal

    def retire(self, worker: int) -> bool:
        """Forget the worker if it is worn and holds nothing; whether it was so."""
        if worker not in self.worn or self.held[worker]:
            return False
        self._forget_worker(worker)
        return True

    def _forget_worker(self, worker: int) -> deque[int]:
        self.gone.add(worker)
        self.worn.discard(worker)
        self.started.discard(worker)
        self.sealed.pop(worker, None)
        del self.pool_of[worker], self._served[worker]
        return self.held.pop(worker)

    def land(self, batch: int) -> Flight:
        """A batch has come back, or was taken back before it started."""
        flight = self._forget_flight(batch)
        held = self.held[flight.worker]
        self._leave_slot(flight.worker)
        held.remove(batch)
        if not held:
            self.sealed.pop(flight.worker, None)
        self._take_slot(flight.worker)
        return flight

    def _forget_flight(self, batch: int) -> Flight:
        self.announced.discard(batch)
        self.asked_back.discard(batch)
        return self.flights.pop(batch)

    def lose(self, worker: int, pool: int, node: str = "") -> list[tuple[Flight, bool]]:
        """A worker is gone; the batches it held, oldest first, and whether each had started.

        The oldest counts as started, later ones only if announced; in a concurrent pool all do. A
        worker that never had a batch counts as a failed start; all that died with one `node`
        count as one.
        """
        if worker not in self.pool_of:
            self.gone.add(worker)
            self.starting[pool] -= 1
            self._start_failed(pool, node)
            return []
        if worker not in self.started:
            self._start_failed(pool, node)
        self._leave_slot(worker)
        held = self._forget_worker(worker)
        all_begun = self._concurrent[pool]
        begun = [
            all_begun or place == 0 or batch in self.announced for place, batch in enumerate(held)
        ]
        return list(zip(map(self._forget_flight, held), begun, strict=True))

    def _start_failed(self, pool: int, node: str) -> None:
        if node not in self._failed_with[pool]:
            self.failed_starts[pool] += 1
        if node:
            self._failed_with[pool].add(node)

    def waiting(self, pool: int) -> list[Flight]:
        """Batches that wait at a worker of the pool and were not asked back, latest last."""
        return [
            self.flights[batch]
            for worker, held in self.held.items()
            if self.pool_of[worker] == pool
            for batch in islice(held, self.places[pool], None)
            if batch not in self.announced and batch not in self.asked_back
        ]

    def free(self, pool: int) -> int:
        """How many batches that wait elsewhere could start at once, beside those asked back."""
        found = len(self.idle[pool]) * self.places[pool]
        if self._concurrent[pool]:
            held = (len(self.held[worker]) for worker in self.spare[pool])
            found += sum(max(0, self.places[pool] - n) for n in held)
        return found - self.answers_due(pool) if found else 0

    def answers_due(self, pool: int) -> int:
        """Batches of the pool that were asked back and may still come."""
        due = self.asked_back - self.announced
        return sum(self.pool_of[self.flights[batch].worker] == pool for batch in due)

    def never_starts(self, pool: int) -> bool:
        """Whether too many workers of the pool died in a row before their first start."""
        return self.failed_starts[pool] >= STARTS_THAT_MAY_FAIL


def _ahead(pool: Pool, most_held: int) -> int:
    """Rows that may wait at a concurrent worker, to start as others end without the driver."""
    return 0 if most_held == 1 else max(1, pool.concurrency // 4)
