"""The nightly job: list, subtract, cut, run each microbatch as a child flow, account for all."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.opening import open_night
from rayorch_prefect.binding.progress import logged_progress
from rayorch_prefect.binding.registry import opened
from rayorch_prefect.binding.summaries import NightSummary
from rayorch_prefect.flows.microbatch import run_microbatch
from rayorch_prefect.program import Program
from rayorch_prefect.tasks.manifest import write_last_part
from rayorch_prefect.tasks.planning import plan_night


async def run_night(
    program: str | Program,
    source: str,
    destination: str,
    microbatch_size: int = 64,
    max_active_microbatches: int = 2,
    failure_policy: int = 0,
    retry_failed: bool = False,
    upload_workers: int = 4,
    ray_address: str | None = None,
) -> tuple[State[Any], NightSummary]:
    """Run a night inside an async flow of one's own; its final state and its numbers.

    `program` is `module:attribute` or a Program; `source` and `destination` are
    `s3://bucket/prefix/`; `microbatch_size` counts sources; `failure_policy` is how many failed
    sources still make a Completed state, named PartiallyCompleted; `retry_failed` runs again
    what failed for good or was published with gaps; `upload_workers` bounds the uploads in
    flight of a microbatch.

    Raises UsageError or ProgramError for an argument or Program that will not do, StoreError if
    the store refuses the listing, the ledger or the manifest.
    """
    night = open_night(
        program,
        source=source,
        destination=destination,
        microbatch_size=microbatch_size,
        max_active_microbatches=max_active_microbatches,
        failure_policy=failure_policy,
        retry_failed=retry_failed,
        upload_workers=upload_workers,
        ray_address=ray_address,
    )
    with opened(night):
        return await _whole(night)


async def _whole(night: Night) -> tuple[State[Any], NightSummary]:
    await plan_night(night.id)
    async with night.engine_open(), logged_progress(night):
        await night.run_microbatches(run_microbatch)
    await write_last_part(night.id)
    await night.publish_table()
    return night.state(), night.summary()


@flow(name="nightly", persist_result=False)
async def nightly(
    program: str,
    source: str,
    destination: str,
    microbatch_size: int = 64,
    max_active_microbatches: int = 2,
    failure_policy: int = 0,
    retry_failed: bool = False,
    upload_workers: int = 4,
    ray_address: str | None = None,
) -> State[Any]:
    """Publish every source under `source` as `program` says; `run_night` has the parameters.

    Completed; Completed named PartiallyCompleted; or Failed under the gravest kind's name.
    """
    state, _ = await run_night(
        program,
        source=source,
        destination=destination,
        microbatch_size=microbatch_size,
        max_active_microbatches=max_active_microbatches,
        failure_policy=failure_policy,
        retry_failed=retry_failed,
        upload_workers=upload_workers,
        ray_address=ray_address,
    )
    return state
