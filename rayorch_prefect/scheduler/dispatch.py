"""Which Grains go to which idle worker next.

`fifo`: up to B Grains from the head of a Call's queue, parents mixed; any other policy chooses
among parents (`policies.py`). Where several Calls share
a pool the one nearest to the output goes first, and where a bound holds back (`credits.py`) so it
is among all Calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from rayorch_prefect.model.events import Bar, DispatchBatch, EntityRange, TakeBack
from rayorch_prefect.model.parts import Part, Parts, extend
from rayorch_prefect.program.plan import Call, Plan, Pool
from rayorch_prefect.scheduler.breakers import Breakers
from rayorch_prefect.scheduler.concurrent import ConcurrentRows
from rayorch_prefect.scheduler.counts import Counts
from rayorch_prefect.scheduler.credits import Credits
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.lingering import Lingering
from rayorch_prefect.scheduler.queues import ReadyQueues
from rayorch_prefect.scheduler.run import Run
from rayorch_prefect.scheduler.values import Values
from rayorch_prefect.scheduler.workers import Flight, Workers


class Dispatcher:
    """Forms batches for idle workers."""

    def __init__(
        self,
        plan: Plan,
        runs: dict[int, Run],
        queues: ReadyQueues,
        workers: Workers,
        counts: Counts,
        breakers: Breakers,
        lingering: Lingering,
        credits: Credits,
    ) -> None:
        self._plan = plan
        self._lingering = lingering
        self._credits = credits
        self._breakers = breakers
        self._runs = runs
        self._queues = queues
        self._workers = workers
        self._counts = counts
        self._rows = ConcurrentRows(queues, workers, breakers, credits)
        self._next_batch = 0
        self._calls_of = [
            [call for call in reversed(plan.calls) if call.pool == pool.id] for pool in plan.pools
        ]
        self._pools = sorted(plan.pools, key=lambda pool: -self._calls_of[pool.id][0].id)

    def was_sent(self, batch: int) -> bool:
        """Whether a batch of this number has ever been sent."""
        return 0 <= batch < self._next_batch

    def dispatch(self) -> Iterator[DispatchBatch]:
        """Batches until no idle worker has ready work that may go."""
        yield from self._send_within()
        if not self._workers.flights:
            yield from self._send_past()
            if self._workers.flights:
                yield from self._send_within()  # what is left may have to linger now

    def _send_within(self) -> Iterator[DispatchBatch]:
        """Batches that the bounds allow."""
        for pool in self._pools:
            if pool.is_concurrent:
                for call, row, worker in self._rows.picks(pool, self._calls_of[pool.id]):
                    yield self._send(call, (row,), worker)
                continue
            for call in self._calls_of[pool.id]:
                while self._workers.idle[pool.id] and not self._lingering.holds_back(call):
                    most = self.most(call, pool)
                    ranges = self._queues.reserve(call.id, most) if most else []
                    if not ranges:
                        break
                    self._credits.went()
                    yield self._send(call, tuple(ranges), self._workers.idle[pool.id][0])
            yield from self._send_ahead(pool)

    def most(self, call: Call, pool: Pool) -> int:
        """How many Grains of a Call may go to an idle worker; a closed batch goes as a whole."""
        ready = self._counts.calls[call.id].ready
        most = min(ready, self._breakers.limit(call.id, pool.batch_size)) if ready else 0
        if not most:
            return 0
        room = self._credits.room(call.id, most)
        if room == most and not self._breakers.is_open(call.id):
            return most  # a closed batch is no larger
        closed = self._queues.closed_at_head(call.id)
        if not closed:
            return room
        return most if self._credits.room(call.id, closed) == closed else 0

    def _send_past(self) -> Iterator[DispatchBatch]:
        """Nothing is in flight: if nothing else is to come, some Grains go past the bound."""
        stuck = [] if self.something_comes() else self._held_back()
        if not stuck:
            return
        number, root, _, call = min(stuck, key=lambda one: one[:3])
        pool, left = self._plan.pools[call.pool], self._credits.past()
        if pool.is_concurrent:
            self._credits.open_to(call.id, left)
            for _, row, worker in self._rows.picks(pool, [call]):
                self._credits.went_past()
                yield self._send(call, (row,), worker)
            self._credits.open_to(call.id, 0)
            return
        while left > 0 and self._workers.idle[pool.id]:
            limit = self._breakers.limit(call.id, min(left, pool.batch_size))
            limit = min(limit, self._at_head_of(call, number, root))
            if not limit:
                return
            ranges = self._queues.reserve_head(call.id, limit)
            left -= sum(end - first for _, first, end in ranges)
            yield self._send(call, tuple(ranges), self._workers.idle[pool.id][0])

    def something_comes(self) -> bool:
        """Whether an event is due though no batch is in flight: a worker becomes ready, a paused
        Call is probed, a wait is over, or an owner takes over a parent."""
        for call in self._plan.calls:
            waits = self._workers.starting[call.pool] or self._breakers.waits(call.id)
            waits = waits or self._lingering.waits(call.id)
            if waits and self._counts.calls[call.id].ready:
                return True
        return any(
            run.mb.completed.count(1) > run.mb.released.count(1) for run in self._runs.values()
        )

    def _held_back(self) -> list[tuple[int, int, int, Call]]:
        """(microbatch, parent, order, Call) of the Grains at the heads that a bound holds back."""
        found: list[tuple[int, int, int, Call]] = []
        for call in self._plan.calls:
            if self._workers.idle[call.pool] and self._breakers.limit(call.id, 1):
                head = self._queues.head(call.id)
                if head is not None:
                    root = self._runs[head[0]].mb.root_of(call.domain, head[1])
                    found.append((head[0], root, -call.id, call))
        return found

    def _at_head_of(self, call: Call, number: int, root: int) -> int:
        """How many Grains at the head of a queue are of this parent."""
        head = self._queues.head(call.id)
        if head is None or head[0] != number:
            return 0
        mb, at, end = self._runs[number].mb, head[1], head[2]
        while at < end and mb.root_of(call.domain, at) == root:
            at += 1
        return at - head[1]

    def _send_ahead(self, pool: Pool) -> Iterator[DispatchBatch]:
        """Full batches to workers that have one, so that they need not wait for the next."""
        for call in self._calls_of[pool.id]:
            while self._workers.spare[pool.id] and not self._breakers.is_open(call.id):
                if self._counts.calls[call.id].ready < pool.batch_size:
                    break
                if not self._credits.room_ahead(call.id, pool.batch_size):
                    break
                ranges = self._queues.reserve_full(call.id, pool.batch_size)
                if not ranges:
                    break
                yield self._send(call, tuple(ranges), self._workers.spare[pool.id][0])

    def ask_back(self) -> Iterator[TakeBack]:
        """Where a worker idles and nothing is ready: batches that wait at its neighbours."""
        for pool in self._plan.pools:
            free = self._workers.free(pool.id)
            if free > 0:
                yield from map(self._ask, self._workers.waiting(pool.id)[-free:])

    def ask_back_useless(self) -> Iterator[TakeBack]:
        """Batches that wait at workers for nobody: their Grains have ended, or their microbatches
        have left."""
        for pool in self._plan.pools:
            for flight in self._workers.waiting(pool.id):
                if not any(self._matters(flight.call, *known) for known in flight.ranges):
                    yield self._ask(flight)

    def _matters(self, call: int, number: int, first: int, end: int) -> bool:
        run = self._runs.get(number)
        return run is not None and run.mb.grains.phase[call].find(Phase.IN_FLIGHT, first, end) >= 0

    def _ask(self, flight: Flight) -> TakeBack:
        self._workers.asked_back.add(flight.batch)
        return TakeBack(flight.batch, flight.worker)

    def _send(self, call: Call, ranges: tuple[EntityRange, ...], worker: int) -> DispatchBatch:
        batch = self._next_batch
        self._next_batch += 1
        rows = sum(end - first for _, first, end in ranges)
        for number, first, end in ranges:
            self._runs[number].mb.grains.move(call.id, first, end, Phase.IN_FLIGHT)
        self._breakers.sent(call.id, batch)
        self._lingering.sent(call.id)
        self._queues.sent(call.id, ranges)
        generations = dict(self._generations(call, ranges))
        self._workers.take_off(Flight(batch, call.id, worker, rows, ranges, generations))
        segments = list(self._segments(call, ranges))
        counts = self._counts.calls[call.id]
        counts.batches += 1
        counts.rows += rows
        counts.ready -= rows
        counts.in_flight += rows
        return DispatchBatch(
            batch=batch,
            call=call.id,
            worker=worker,
            ranges=ranges,
            generation=max(generations.values(), default=0),
            rows=rows,
            inputs=tuple(self._parts(port, ranges) for port in call.inputs),
            cuts=tuple(row for row, _ in segments[1:]),
            bars=tuple(bar for _, bar in segments) if call.domain else (),
            oldest=min(self._runs),
            taken=tuple(self._taken(call, ranges)) if call.chunked else (),
        )

    def _generations(
        self, call: Call, ranges: tuple[EntityRange, ...]
    ) -> Iterator[tuple[int, int]]:
        """(row, generation) of the Grains that were tried before."""
        row = 0
        for number, first, end in ranges:
            known = self._runs[number].mb.grains.generation[call.id]
            if known:
                for entity in range(first, end):
                    if entity in known:
                        yield row + entity - first, known[entity]
            row += end - first

    def _taken(self, call: Call, ranges: tuple[EntityRange, ...]) -> Iterator[tuple[int, int]]:
        """(row, n) of the Grains of which an earlier try has yielded n children."""
        row = 0
        for number, first, end in ranges:
            items = self._runs[number].mb.items
            for entity in range(first, end):
                n = items.arrived(call.outputs[0], entity)
                if n:
                    yield row + entity - first, n
            row += end - first

    def _parts(self, port: int, ranges: tuple[EntityRange, ...]) -> Parts:
        found: list[Part] = []
        for number, first, end in ranges:
            extend(found, Values(self._runs[number].mb).parts(port, first, end))
        return tuple(found)

    def _segments(self, call: Call, ranges: tuple[EntityRange, ...]) -> Iterator[tuple[int, Bar]]:
        """(row, bar) where another group begins."""
        row = 0
        for number, first, end in ranges:
            for group, start, _ in self._runs[number].mb.groups(call.domain, first, end):
                yield row + start - first, (number, call.id, group)
            row += end - first

    def uncount(self, run: Run) -> None:
        """Take a microbatch that ends early out of the counts of ready Grains."""
        for call in self._plan.calls:
            phase = run.mb.grains.phase[call.id]
            self._counts.calls[call.id].ready -= phase.count(Phase.READY)
