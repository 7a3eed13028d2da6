"""What must hold between any two events, counted anew from the tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.outcomes import OUTCOME_MOVES, Outcome
from rayorch_prefect.program.plan import Call, Pool
from rayorch_prefect.scheduler import microbatch as microbatch_module
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import MOVES, Grains, Phase
from rayorch_prefect.scheduler.items import Items
from rayorch_prefect.scheduler.microbatch import UNKNOWN, Microbatch


class WatchedPhases(bytearray):
    """Phases that refuse a transition which `grains.MOVES` does not name."""

    def __setitem__(self, at: Any, value: Any) -> None:
        after = value if isinstance(at, slice) else (value,)
        before = self[at] if isinstance(at, slice) else (self[at],)
        for one, other in zip(before, after, strict=True):
            move = (Phase(one), Phase(other))
            assert move in MOVES, f"{move[0].name} -> {move[1].name}"
        super().__setitem__(at, value)


class WatchedOutcomes(bytearray):
    """Outcomes that are written once."""

    def __setitem__(self, at: Any, value: Any) -> None:
        after = value if isinstance(at, slice) else (value,)
        before = self[at] if isinstance(at, slice) else (self[at],)
        for one, other in zip(before, after, strict=True):
            move = (Outcome(one), Outcome(other))
            assert move in OUTCOME_MOVES, f"an Item that was {move[0].name} settles again"
        super().__setitem__(at, value)


class _WatchedGrains(Grains):
    def __init__(self, calls: int) -> None:
        super().__init__(calls)
        self.phase = [WatchedPhases() for _ in range(calls)]


class _WatchedItems(Items):
    def __init__(self, ports: int) -> None:
        super().__init__(ports)
        self.outcome = [WatchedOutcomes() for _ in range(ports)]


@contextmanager
def watched() -> Iterator[None]:
    """Microbatches that begin inside have watched tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(microbatch_module, "Grains", _WatchedGrains)
        patch.setattr(microbatch_module, "Items", _WatchedItems)
        yield


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError where the tables do not agree with each other."""
    for run in scheduler.runs.values():
        _check_lineage(run.mb)
        _check_grains(run.mb)
        _check_joins(run.mb)
        _check_parents(run.mb)
    _check_queues(scheduler)
    _check_flights(scheduler)
    if scheduler.stopped is None:
        _check_workers(scheduler)


def _check_lineage(mb: Microbatch) -> None:
    """Members are in order, disjoint and all; ordinals count from 0."""
    lineage = mb.lineage
    for domain in mb.wiring.plan.domains:
        count = lineage.count[domain.id]
        for port in mb.wiring.ports_on[domain.id]:
            assert len(mb.items.outcome[port]) == count, "an outcome for each Entity"
        if domain.parent is None:
            assert count == mb.rows
            continue
        assert len(lineage.first[domain.id]) == lineage.count[domain.parent]
        seen = [-1] * count
        for parent in range(lineage.count[domain.parent]):
            members = lineage.members(domain.id, parent)
            assert len(members) == lineage.size[domain.id][parent]
            for ordinal, entity in enumerate(members):
                assert seen[entity] == -1, "an Entity has one direct parent"
                seen[entity] = parent
                assert lineage.parent[domain.id][entity] == parent
                assert lineage.ordinal(domain.id, entity) == ordinal
        assert -1 not in seen, "an Entity without a parent"


def _check_grains(mb: Microbatch) -> None:
    for call in mb.wiring.plan.calls:
        for group in mb.grains.barred[call.id]:
            for entity in mb.lineage.members(call.domain, group):
                assert mb.grains.phase[call.id][entity] == Phase.ENDED, "a sibling is not barred"
        outcomes = [mb.items.outcome[port] for port in call.outputs]
        for entity, phase in enumerate(mb.grains.phase[call.id]):
            found = {outcome[entity] for outcome in outcomes}
            assert len(found) == 1, "the outputs of a Grain settle alike"
            assert (phase == Phase.ENDED) == (found != {Outcome.PENDING}), Phase(phase).name
            inputs = [mb.items.outcome[port][entity] for port in call.inputs]
            if phase == Phase.WAITING:
                assert Outcome.PENDING in inputs, "a Grain waits for nothing"
            elif phase != Phase.ENDED:
                assert set(inputs) == {Outcome.PRESENT}, "a Grain is tried without its inputs"


def _check_joins(mb: Microbatch) -> None:
    for join in mb.wiring.joins:
        for parent in range(mb.lineage.count[join.domain]):
            pending = mb.pending[join.id][parent]
            results = {mb.items.outcome[port][parent] for port in join.results}
            assert len(results) == 1
            members = mb.lineage.members(join.child, parent)
            recount = sum(
                mb.items.outcome[port][one] == Outcome.PENDING
                for port in join.sources
                for one in members
            )
            if mb.lineage.is_open(join.child, parent):
                assert pending == (1 + recount if members else UNKNOWN)
                assert results == {Outcome.PENDING}
                continue
            if mb.lineage.has_failed(join.child, parent):
                assert not recount, "a member of an expansion that failed is pending"
                assert Outcome.PENDING not in results
                continue
            assert pending == recount, f"pending is {pending}, counted {recount}"
            assert (results == {Outcome.PENDING}) == (recount > 0), "fires with the last member"


def _check_parents(mb: Microbatch) -> None:
    for row in range(mb.rows):
        ended = all(mb.items.outcome[port][row] for port in mb.wiring.output_at_root)
        assert bool(mb.completed[row]) == ended
        assert mb.completed[row] or not mb.released[row]
    assert mb.unreleased == mb.released.count(0) > 0


def _check_queues(scheduler: Scheduler) -> None:
    for call in scheduler.plan.calls:
        ready = {
            (number, entity)
            for number, run in scheduler.runs.items()
            for entity, phase in enumerate(run.mb.grains.phase[call.id])
            if phase == Phase.READY
        }
        queued = Counter(
            (number, entity)
            for number, first, end in scheduler.queues.ranges(call.id)
            for entity in range(first, end)
            if (number, entity) in ready
        )
        assert set(queued) == ready, f"READY but not queued: {ready - set(queued)}"
        assert not queued or max(queued.values()) == 1, "a Grain is queued twice"
        assert scheduler.counts.calls[call.id].ready == len(ready)
        for number, first, end in scheduler.queues.ranges(call.id):
            assert number in scheduler.runs or first == end, "work of a microbatch that has left"


def _check_flights(scheduler: Scheduler) -> None:
    flying: Counter[tuple[int, int, int]] = Counter()
    rows = [0] * len(scheduler.plan.calls)
    for flight in scheduler.workers.flights.values():
        assert flight.batch in scheduler.workers.held[flight.worker]
        rows[flight.call] += flight.rows
        for number, first, end in flight.ranges:
            if number not in scheduler.runs:
                continue
            phase = scheduler.runs[number].mb.grains.phase[flight.call]
            for entity in range(first, end):
                assert phase[entity] in (Phase.IN_FLIGHT, Phase.ENDED)
                flying[number, flight.call, entity] += phase[entity] == Phase.IN_FLIGHT
    for number, run in scheduler.runs.items():
        for call in scheduler.plan.calls:
            for entity, one in enumerate(run.mb.grains.phase[call.id]):
                assert flying[number, call.id, entity] == (one == Phase.IN_FLIGHT)
    assert rows == [counts.in_flight for counts in scheduler.counts.calls]


def _check_workers(scheduler: Scheduler) -> None:
    workers = scheduler.workers
    held = {worker: len(batches) for worker, batches in workers.held.items()}
    assert set(workers.held) == set(workers.pool_of)
    assert sum(map(len, workers.held.values())) == len(workers.flights)
    assert workers.announced | workers.asked_back <= set(workers.flights)
    assert workers.worn <= set(workers.held)
    assert not workers.newly_worn
    assert set(workers.sealed) <= set(workers.held)
    for pool in scheduler.plan.pools:
        most = workers.most[pool.id]
        mine = {worker: n for worker, n in held.items() if workers.pool_of[worker] == pool.id}
        # Others may hold more than they may get: some of it was sent before they might hold less.
        assert not pool.is_concurrent or max(mine.values(), default=0) <= most
        fresh = {one: n for one, n in mine.items() if one not in workers.worn | {*workers.sealed}}
        assert sorted(workers.idle[pool.id]) == sorted(one for one, n in fresh.items() if not n)
        assert sorted(workers.spare[pool.id]) == sorted(
            one for one, n in fresh.items() if 0 < n < most
        )
        sealed = [one for one in mine if one in workers.sealed]
        assert pool.is_concurrent or not sealed
        assert all(mine[one] for one in sealed), "a worker is sealed for nothing"
        if pool.is_concurrent:
            _check_places(scheduler, pool, mine, fresh)
    for pool in scheduler.plan.pools:
        known = {worker for worker, at in workers.pool_of.items() if at == pool.id}
        assert len(known - workers.worn) + workers.starting[pool.id] == pool.replicas
        assert all(workers.held[worker] for worker in known & workers.worn), "worn and idle"
        if workers.idle[pool.id]:
            for call in scheduler.plan.calls:
                if call.pool == pool.id:
                    most = scheduler.dispatcher.most(call, pool)
                    lingers = pool.linger_s is not None and _lingers(scheduler, pool, call)
                    assert lingers or not most, "a worker idles while a Grain is ready for it"
                    ready = scheduler.counts.calls[call.id].ready
                    if ready and scheduler.breakers.limit(call.id, 1) and not workers.flights:
                        assert scheduler.dispatcher.something_comes(), "nothing moves any more"


def _check_places(
    scheduler: Scheduler, pool: Pool, held: dict[int, int], fresh: dict[int, int]
) -> None:
    """No place is free while a row is ready for it; suspects wait only for an empty worker."""
    workers, queues = scheduler.workers, scheduler.queues
    calls = [call.id for call in scheduler.plan.calls if call.pool == pool.id]
    for call in calls:
        if not scheduler.breakers.limit(call, 1) or not scheduler.credits.room(call, 1):
            continue
        closed = [entry for entry in queues._queues[call] if entry.closed]
        suspects = sum(_ready_in(scheduler, call, entry.ranges) for entry in closed)
        open_rows = scheduler.counts.calls[call].ready - suspects
        free = [worker for worker, n in fresh.items() if n < pool.concurrency]
        assert not (free and open_rows), "a place is free while a row is ready for it"
        if suspects:
            assert 0 not in fresh.values(), "a worker is empty while suspects wait for one"
            coming = workers.starting[pool.id] or any(one in workers.sealed for one in held)
            assert coming or not fresh, "nobody drains for the suspects"

    asked = workers.answers_due(pool.id)
    places = sum(max(0, pool.concurrency - n) for n in fresh.values())
    assert places <= asked or not workers.waiting(pool.id), "a place is free while a row waits"


def _lingers(scheduler: Scheduler, pool: Pool, call: Call) -> bool:
    """Whether a worker may idle: a wait was asked for, and more rows may come."""
    closed = [entry for entry in scheduler.queues._queues[call.id] if entry.closed]
    others = [one for at, one in enumerate(scheduler.counts.calls) if at != call.id]
    return (
        scheduler.lingering.waits(call.id)
        and scheduler.counts.calls[call.id].ready < pool.batch_size
        and any(one.ready or one.in_flight for one in others)
        and not any(_ready_in(scheduler, call.id, entry.ranges) for entry in closed)
    )


def more_may_come(scheduler: Scheduler, call: Call) -> bool:
    """Whether a Grain of the Call still waits for an input, or may come to be."""
    plan = scheduler.plan
    for run in scheduler.runs.values():
        if Phase.WAITING in run.mb.grains.phase[call.id]:
            return True
        domain = call.domain
        while (above := plan.domains[domain].parent) is not None:
            if any(run.mb.lineage.is_open(domain, at) for at in range(run.mb.lineage.count[above])):
                return True
            domain = above
    return False


def _ready_in(scheduler: Scheduler, call: int, ranges: Iterable[EntityRange]) -> int:
    return sum(
        scheduler.runs[number].mb.grains.phase[call].count(Phase.READY, first, end)
        for number, first, end in ranges
        if number in scheduler.runs
    )
