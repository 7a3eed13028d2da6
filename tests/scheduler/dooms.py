"""What must hold of doomed parents after each event."""

from __future__ import annotations

from collections.abc import Mapping, Set

from rayorch_prefect.model.events import Bar
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.program.plan import BroadcastOp, CoalesceOp, OnFailure, Plan
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.microbatch import Microbatch


def check(scheduler: Scheduler, bars_at: Mapping[int, Set[Bar]]) -> int:
    """Raises AssertionError where one goes on, or a worker does not know; returns how many Grains
    were suppressed with their parents."""
    forgives = _forgives(scheduler.plan)
    for run in scheduler.runs.values():
        if not forgives:
            _check_failed(run.mb)
        if run.mb.doomed:
            _check_ended(run.mb)
    _check_told(scheduler, bars_at)
    for counts in scheduler.counts.calls:
        assert 0 <= counts.doomed <= counts.suppressed
    return sum(counts.doomed for counts in scheduler.counts.calls)


def _forgives(plan: Plan) -> bool:
    """Whether there is anything that may keep a failure from an output."""
    return any(isinstance(port.op, (CoalesceOp, BroadcastOp)) for port in plan.ports) or any(
        reduce.on_failure is not OnFailure.FAIL for reduce in plan.reduces
    )


def _check_failed(mb: Microbatch) -> None:
    for port in mb.wiring.plan.ports:
        for entity, outcome in enumerate(mb.items.outcome[port.id]):
            if outcome in (Outcome.FAILED, Outcome.SUPPRESSED):
                row = mb.root_of(port.domain, entity)
                assert mb.completed[row], "a parent goes on that cannot be COMPLETED"


def _check_ended(mb: Microbatch) -> None:
    assert all(mb.completed[row] for row in mb.doomed), "a doomed parent has not ended"
    for call in mb.wiring.plan.calls:
        for entity, phase in enumerate(mb.grains.phase[call.id]):
            if phase != Phase.ENDED:
                row = mb.root_of(call.domain, entity)
                assert row not in mb.doomed, "a doomed parent has work"


def _check_told(scheduler: Scheduler, bars_at: Mapping[int, Set[Bar]]) -> None:
    for flight in scheduler.workers.flights.values():
        domain = scheduler.plan.calls[flight.call].domain
        for number, first, end in flight.ranges if domain else ():
            run = scheduler.runs.get(number)
            for entity in range(first, end) if run is not None and run.mb.doomed else ():
                assert run is not None
                if run.mb.root_of(domain, entity) in run.mb.doomed:
                    bar = (number, flight.call, run.mb.group_of(domain, entity))
                    assert bar in bars_at[flight.worker], "a worker goes on for a doomed parent"
