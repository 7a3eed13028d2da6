"""Which Grains go to workers that have several rows in flight.

Each row is a batch of its own, so that a slow one holds up nothing. Where all places are taken a
few more rows wait at the workers. When such a worker dies each of its rows is a suspect. Suspects
are tried again in *companies*: closed batches that have a worker to themselves, row by row, and are
halved with each death, until the culprit stands alone. Where no worker is empty for a company, one
is drained.
"""

from __future__ import annotations

from collections.abc import Iterator

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.program.plan import Call, Pool
from rayorch_prefect.scheduler.breakers import Breakers
from rayorch_prefect.scheduler.credits import Credits
from rayorch_prefect.scheduler.queues import ReadyQueues
from rayorch_prefect.scheduler.workers import Flight, Seal, Workers

# A Grain to send: its Call, where it is, and to which worker.
Pick = tuple[Call, EntityRange, int]


class ConcurrentRows:
    """Picks rows for free places; each must be sent before the next is asked for."""

    def __init__(
        self, queues: ReadyQueues, workers: Workers, breakers: Breakers, credits: Credits
    ) -> None:
        self._queues = queues
        self._workers = workers
        self._breakers = breakers
        self._credits = credits

    def picks(self, pool: Pool, calls: list[Call]) -> Iterator[Pick]:
        """Rows until no place is free or nothing is ready; companies first."""
        for call in calls:
            yield from self._companies(pool, call)
        for call in calls:
            while self._may_send(call):
                worker = self._roomiest(pool.id)
                if worker is None:
                    break
                waits = len(self._workers.held[worker]) >= pool.concurrency
                ranges = self._queues.take_open(call.id, 1, ahead=waits)
                if not ranges:
                    break
                yield call, ranges[0], worker

    def _may_send(self, call: Call) -> bool:
        return self._breakers.limit(call.id, 1) > 0 and self._credits.room(call.id, 1) > 0

    def _companies(self, pool: Pool, call: Call) -> Iterator[Pick]:
        while self._may_send(call) and self._queues.has_closed(call.id):
            worker = self._empty(pool.id)
            if worker is None:
                return
            self._workers.seal(worker, Seal.COMPANY)
            rows = list(_singly(self._queues.take_closed(call.id)))
            # A worker may wear out on the way, and a paused Call sends one row to probe.
            while rows and self._may_send(call) and worker not in self._workers.worn:
                yield call, rows.pop(0), worker
            if rows:
                self._queues.push_closed(call.id, rows)

    def _empty(self, pool: int) -> int | None:
        """A worker that holds nothing; if there is none, and none will be by itself, one drains."""
        workers = self._workers
        if workers.idle[pool]:
            return workers.idle[pool][0]
        there = [worker for worker, at in workers.pool_of.items() if at == pool]
        if not workers.starting[pool] and not any(worker in workers.sealed for worker in there):
            busy = [worker for worker in there if worker not in workers.worn]
            if busy:
                workers.seal(min(busy, key=lambda one: len(workers.held[one])), Seal.DRAINS)
        return None

    def _roomiest(self, pool: int) -> int | None:
        """The worker with a free place that holds least."""
        workers = self._workers
        if workers.idle[pool]:
            return workers.idle[pool][0]
        return min(workers.spare[pool], key=lambda one: len(workers.held[one]), default=None)


def companies(flights: list[Flight], *, halve: bool) -> list[list[Flight]]:
    """The suspects of one death in smaller companies: by Call, or else in halves."""
    by_call: dict[int, list[Flight]] = {}
    for flight in flights:
        by_call.setdefault(flight.call, []).append(flight)
    if len(by_call) > 1 or not halve or len(flights) < 2:
        return list(by_call.values())
    middle = (len(flights) + 1) // 2
    return [flights[:middle], flights[middle:]]


def _singly(ranges: list[EntityRange]) -> Iterator[EntityRange]:
    for number, first, end in ranges:
        for entity in range(first, end):
            yield number, entity, entity + 1
