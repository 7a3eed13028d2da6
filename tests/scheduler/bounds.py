"""What must hold of bounds after each event, counted anew from the virtual store."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from rayorch_prefect.model.events import DispatchBatch, Instruction
from rayorch_prefect.program.plan import Pool
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.credits import MIB, Bound

# (first slot, n, bytes, parted) and the Call of stored values.
Stored = tuple[tuple[int, int, int, bool], int]

_COUNTS = (None, None, 1, 2, 7, 64)
_BYTES = (None, None, None, 1, 300, 3000)


def some_bound(seed: int) -> Bound:
    """A bound for a schedule: often none, often one that a single parent exceeds."""
    pick = random.Random(seed)
    return Bound(pick.choice(_COUNTS), pick.choice(_BYTES))


def bounded(bound: Bound, pool: Pool) -> bool:
    """Whether a bound may make batches of the pool smaller."""
    return bound != Bound() or pool.max_pending is not None or pool.max_pending_mb is not None


def cut(pick: random.Random, slots: int) -> tuple[tuple[int, int, bool], ...]:
    """Sizes of an output's stored values, now and then not told."""
    found: list[tuple[int, int, bool]] = []
    while slots:
        n = pick.randint(1, slots)
        found.append((n, n * pick.choice((0, 1, 50)), pick.random() < 0.5))
        slots -= n
    return tuple(found)


def check(
    scheduler: Scheduler,
    bound: Bound,
    store: Mapping[int, object],
    stored: list[Stored],
    told: list[Instruction],
) -> bool:
    """Raises AssertionError where pending values are miscounted or a batch went past a bound
    although something else was in flight; whether Grains were let past."""
    stored[:] = [one for one in stored if _live(one, store)]
    credits, calls = scheduler.credits, range(len(scheduler.plan.calls))
    values, size = [0] * len(calls), [0] * len(calls)
    for one in stored:
        (_, n, weighs, parted), call = one
        live = _live(one, store)
        values[call] += live
        size[call] += weighs * live // n if parted else weighs
    assert credits.values.held == values, "values pending are miscounted"
    assert credits.bytes.held == size, "bytes pending are miscounted"
    return _check_sent(scheduler, bound, values, size, told)


def _live(one: Stored, store: Mapping[int, object]) -> int:
    (first, n, _, _), _ = one
    return sum(slot in store for slot in range(first, first + n))


def _check_sent(
    scheduler: Scheduler,
    bound: Bound,
    values: list[int],
    size: list[int],
    told: list[Instruction],
) -> bool:
    sent = [one for one in told if isinstance(one, DispatchBatch)]
    counts, plan = scheduler.counts.calls, scheduler.plan
    past: list[DispatchBatch] = []
    for held, measure, most, of_stage in (
        (values, scheduler.credits.values, bound.values, "max_pending"),
        (size, scheduler.credits.bytes, bound.bytes, "max_pending_mb"),
    ):
        load = [
            held[call.id] + counts[call.id].in_flight * measure.each[call.id] for call in plan.calls
        ]
        for order in sent:
            pool = plan.pools[plan.calls[order.call].pool]
            own = getattr(pool, of_stage)
            own = math.inf if own is None else own * (MIB if of_stage.endswith("mb") else 1)
            of_pool = sum(load[call.id] for call in plan.calls if call.pool == pool.id)
            limit = math.inf if most is None else most
            over = sum(load) > limit + 1e-6 or of_pool > own + 1e-6
            if measure.each[order.call] and over:
                past.append(order)
    if past:
        assert len(scheduler.workers.flights) == len(sent), "past a bound, though work is in flight"
        assert len({order.call for order in sent}) == 1
        for run in scheduler.runs.values():
            assert run.mb.completed == run.mb.released, "past a bound, though a parent is to go"
        if plan.pools[plan.calls[sent[0].call].pool].is_concurrent:
            return True
        # The first may be a closed batch, of several parents.
        (first, *_), *others = [_roots(scheduler, order) for order in sent]
        assert all(root == first for roots in others for root in roots), "several parents"
    return bool(past)


def _roots(scheduler: Scheduler, order: DispatchBatch) -> list[tuple[int, int]]:
    domain = scheduler.plan.calls[order.call].domain
    return [
        (number, scheduler.runs[number].mb.root_of(domain, entity))
        for number, first, end in order.ranges
        for entity in range(first, end)
    ]
