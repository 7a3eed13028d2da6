"""What workers need to know of a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rayorch_prefect.execution.messages import CallContract
from rayorch_prefect.execution.node_setup import NodeSetup
from rayorch_prefect.execution.stage_runner import StageSpec
from rayorch_prefect.program.plan import Plan, Pool
from rayorch_prefect.scheduler.wiring import Wiring

SMALLEST_CHUNK = 16


@dataclass(frozen=True)
class BuildOrder:
    """What a worker on Ray is built from, and the contracts of the Calls that it serves."""

    stage: StageSpec
    contracts: Mapping[int, CallContract]
    node_setup: NodeSetup | None
    marks_rows: bool
    weighs: bool
    row_limit_s: float | None = None
    """The limit that workers of a concurrent pool keep themselves."""


def build_order(plan: Plan, pool: Pool) -> BuildOrder:
    """The order for workers of a pool."""
    setup = NodeSetup.of(pool.stage, pool.node_setup)
    marks_rows = pool.row_limit_s is not None and not pool.is_concurrent
    weighs = pool.recycle_above_mb is not None
    # Not in `stage_spec`: a worker inside the driver's process must not limit that.
    stage = replace(stage_spec(pool), memory_limit_mb=pool.memory_limit_mb)
    limit = pool.longest_row_s if pool.is_concurrent else None
    return BuildOrder(stage, contracts(plan, pool.id), setup, marks_rows, weighs, limit)


def stage_spec(pool: Pool) -> StageSpec:
    """What a worker of the pool is built from."""
    return StageSpec(
        pool.stage, pool.target, tuple(pool.args), dict(pool.kwargs), pool.rowwise, pool.outputs
    )


def contracts(plan: Plan, pool: int) -> dict[int, CallContract]:
    """The contract of each Call that the pool serves.

    Chunks are cut at the largest batch of those that read them, so that a batch of one parent
    reads about two, and a row that is sent by itself does not take its neighbours along.
    """
    wiring = Wiring(plan)
    readers: dict[int, int] = {}
    for call in plan.calls:
        for port in call.inputs:
            for origin in wiring.origins[port]:
                pool_read_by = plan.pools[call.pool]
                rows = max(SMALLEST_CHUNK, pool_read_by.batch_size)
                rows = 1 if pool_read_by.is_concurrent else rows
                readers[origin] = max(readers.get(origin, 1), rows)
    return {
        call.id: CallContract(
            call.stage,
            call.list_depths,
            call.masks,
            max(readers.get(port, SMALLEST_CHUNK) for port in call.outputs),
            bool(call.chunked),
        )
        for call in plan.calls
        if call.pool == pool
    }
