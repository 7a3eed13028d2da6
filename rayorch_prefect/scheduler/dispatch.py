"""Which Grains go to which idle worker next.

`fifo`: up to B Grains from the head of a Call's queue, parents mixed. Where several Calls share
a pool the one nearest to the output goes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from rayorch_prefect.model.events import Bar, DispatchBatch, EntityRange, TakeBack
from rayorch_prefect.model.parts import Part, Parts, extend
from rayorch_prefect.program.plan import Call, Plan, Pool
from rayorch_prefect.scheduler.breakers import Breakers
from rayorch_prefect.scheduler.concurrent import ConcurrentRows
from rayorch_prefect.scheduler.counts import Counts
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
    ) -> None:
        self._plan = plan
        self._lingering = lingering
        self._breakers = breakers
        self._runs = runs
        self._queues = queues
        self._workers = workers
        self._counts = counts
        self._rows = ConcurrentRows(queues, workers, breakers)
        self._next_batch = 0
        self._calls_of = [
            [call for call in reversed(plan.calls) if call.pool == pool.id] for pool in plan.pools
        ]

    def was_sent(self, batch: int) -> bool:
        """Whether a batch of this number has ever been sent."""
        return 0 <= batch < self._next_batch

    def dispatch(self) -> Iterator[DispatchBatch]:
        """Batches until no idle worker has ready work."""
        for pool in self._plan.pools:
            if pool.is_concurrent:
                for call, row, worker in self._rows.picks(pool, self._calls_of[pool.id]):
                    yield self._send(call, (row,), worker)
                continue
            for call in self._calls_of[pool.id]:
                while self._workers.idle[pool.id] and not self._lingering.holds_back(call):
                    most = self._breakers.limit(call.id, pool.batch_size)
                    ranges = self._queues.reserve(call.id, most) if most else []
                    if not ranges:
                        break
                    yield self._send(call, tuple(ranges), self._workers.idle[pool.id][0])
            yield from self._send_ahead(pool)

    def _send_ahead(self, pool: Pool) -> Iterator[DispatchBatch]:
        """Full batches to workers that have one, so that they need not wait for the next."""
        for call in self._calls_of[pool.id]:
            while self._workers.spare[pool.id] and not self._breakers.is_open(call.id):
                if self._counts.calls[call.id].ready < pool.batch_size:
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
        """Batches that wait at workers and are all for microbatches that have left."""
        for pool in self._plan.pools:
            for flight in self._workers.waiting(pool.id):
                if not any(number in self._runs for number, _, _ in flight.ranges):
                    yield self._ask(flight)

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
