"""What an Engine has done, as a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch_prefect.execution.appliers import Appliers
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.program.plan import Call
from rayorch_prefect.scheduler.credits import MIB


@dataclass(frozen=True, slots=True)
class CallMetrics:
    """Of one Call. `grains` were committed, `doomed` of those suppressed were so as their parent
    could not be completed any more. `fill` is rows sent a batch over the batch size,
    `busy_s` the seconds its workers spent inside the stage. That is about `call_s` a batch and
    `row_s` a row, or `child_s` a child where its output is expanded (see `StageCosts`). `depth` is
    its Domain's, 0 for the source rows."""

    stage: str
    domain: str
    grains: int
    batches: int
    fill: float
    ready: int
    in_flight: int
    failed: int
    suppressed: int
    doomed: int
    busy_s: float
    depth: int
    batch_size: int
    workers: int
    call_s: float
    row_s: float
    child_s: float

    @property
    def rows(self) -> int:
        """Rows sent in its batches."""
        return round(self.fill * self.batches * self.batch_size)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """`retries` counts Grains tried again, `stale_reports` reports that came too late,
    `dropped_rows` rows computed for Grains that no longer mattered, `lost_blocks` blocks of values
    that died with a node, `remade_rows` rows computed again to have such values back,
    `appliers_lost` actors of `apply` that died, `applied_again` calls of it tried again for it.
    `pending_mb` MiB of values are stored whose last reader has not committed, `peak_pending_mb` at
    the most."""

    calls: tuple[CallMetrics, ...]
    retries: int
    stale_reports: int
    suppressed: int
    doomed: int
    dropped_rows: int
    workers_lost: int
    lost_blocks: int
    remade_rows: int
    deadlines_passed: int
    workers_recycled: int
    appliers_lost: int
    applied_again: int
    pending_mb: float
    peak_pending_mb: float


def snapshot(driver: Driver, appliers: Appliers | None) -> EngineMetrics:
    """Read the counters; may be called from any thread."""
    plan, counts = driver.plan, driver.scheduler.counts
    calls = [_of_call(driver, call) for call in plan.calls]
    return EngineMetrics(
        calls=tuple(calls),
        retries=counts.retries,
        stale_reports=counts.stale_reports,
        suppressed=sum(call.suppressed for call in calls),
        doomed=sum(call.doomed for call in calls),
        dropped_rows=counts.dropped_rows,
        workers_lost=counts.workers_lost,
        lost_blocks=driver.remaker.lost,
        remade_rows=driver.remaker.rows,
        deadlines_passed=counts.deadlines_passed,
        workers_recycled=counts.workers_recycled,
        appliers_lost=appliers.lost if appliers else 0,
        applied_again=appliers.again if appliers else 0,
        pending_mb=sum(driver.scheduler.credits.bytes.held) / MIB,
        peak_pending_mb=driver.scheduler.credits.peak_bytes / MIB,
    )


def _of_call(driver: Driver, call: Call) -> CallMetrics:
    plan, known, costs = driver.plan, driver.scheduler.counts.calls[call.id], driver.costs[call.id]
    pool, domain = plan.pools[call.pool], plan.domains[call.domain]
    slots = known.batches * pool.batch_size
    call_s, each_s = costs.fitted()
    return CallMetrics(
        stage=call.stage,
        domain=domain.name,
        grains=known.grains,
        batches=known.batches,
        fill=known.rows / slots if slots else 0.0,
        ready=known.ready,
        in_flight=known.in_flight,
        failed=known.failed,
        suppressed=known.suppressed,
        doomed=known.doomed,
        busy_s=costs.busy_s,
        depth=domain.depth,
        batch_size=pool.batch_size,
        workers=pool.replicas,
        call_s=call_s,
        row_s=0.0 if costs.by_child else each_s,
        child_s=each_s if costs.by_child else 0.0,
    )
