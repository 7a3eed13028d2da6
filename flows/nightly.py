"""The nightly job: list, subtract, cut, run each microbatch as a child flow, account for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.block_references import Cluster, Place
from rayorch_prefect.binding.cancelling import outermost, until_ended
from rayorch_prefect.binding.control_room import tell_night, watched_night
from rayorch_prefect.binding.hooks import Hook
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.opening import flow_run_name, open_night
from rayorch_prefect.binding.progress import logged_progress
from rayorch_prefect.binding.recording import note_missing
from rayorch_prefect.binding.registry import opened
from rayorch_prefect.binding.selection import NoSources
from rayorch_prefect.binding.stopping import ignore_late_sigterm
from rayorch_prefect.binding.summaries import NightSummary
from rayorch_prefect.binding.upload_tasks import UploadTask
from rayorch_prefect.errors import OwnedElsewhere
from rayorch_prefect.flows.microbatch import run_microbatch
from rayorch_prefect.program import Program
from rayorch_prefect.tasks.manifest import write_last_part
from rayorch_prefect.tasks.planning import plan_night


async def run_night(
    program: str | Program,
    source: Place,
    destination: Place,
    microbatch_size: int | None = None,
    max_active_microbatches: int | None = None,
    failure_policy: int | str | None = None,
    retry_failed: bool = False,
    upload_workers: int | None = None,
    ray_address: Cluster | None = None,
    upload_group: int | None = None,
    upload_runner: str | None = None,
    limit: int | None = None,
    only: list[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    allow_empty: bool = False,
    working_dir: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    upload_task: str | UploadTask | None = None,
    lease_seconds: float | None = None,
    upload_tries: int | None = None,
    max_pending: int | None = None,
    max_pending_mb: float | str | None = None,
    policy: str | None = None,
    record: str | None = None,
    parent_events: int | None = None,
    stage_log_level: str | None = None,
    hooks: Mapping[str, str | Hook] | None = None,
) -> tuple[State[Any], NightSummary]:
    """Run a night inside an async flow of one's own; its final state and its numbers.

    An argument that is None is what Prefect's settings say, PREFECT_INTEGRATIONS_RAYORCH_* and its
    files (`RayorchSettings`), else its default: microbatches of 64 sources, 2 of them at a time, 4
    uploads each, in threads, of one parent each, in up to 4 tries; a lease of 60 s; `fifo`; 1,000
    events; no failure tolerated.

    `program` is `module:attribute` or a Program; `source` and `destination` are
    `s3://bucket/prefix/`, or a block `S3Location` or its name, `s3-location/NAME`; `ray_address`
    may be a block `RayCluster` or its name, `ray-cluster/NAME`; `microbatch_size` counts sources;
    `failure_policy` is how many failed sources ("3"), or what share ("5%"), still make a Completed
    state, named PartiallyCompleted, or which failure stops the night ("fail-fast",
    "stop=UploadFailed"); `retry_failed` runs again what failed for good or was published with gaps;
    `upload_workers` bounds the uploads in flight of a microbatch; one upload task run publishes up
    to `upload_group` parents, or what came within 1 s, in up to `upload_tries` tries while the
    store is unavailable. `upload_runner` "threads" runs them in this process, "ray" on Ray workers.
    `only` narrows the sources to these keys or URIs; `limit` bounds how many run, the others
    count as not processed without making the state Failed; `force` runs what the ledger says is
    done too. `dry_run` plans and starts nothing: Completed named DryRun. A prefix without an
    object ends as Failed named NoSources unless `allow_empty`.
    `working_dir` is a folder of modules that Ray brings to the workers (the program's too),
    `runtime_env` what else Ray gives them; Prefect shows parameters, so no secrets in it.
    `upload_task`, a Prefect task or `module:attribute`, uploads in place of ours: it gets a
    WholeParent and returns an Artifact, or several, for what it stored.
    At most `max_pending_mb` MiB of values ("auto", the default: 60 % of Ray's object store; "none":
    no bound), and at most `max_pending` of them, wait for their last reader at once, and `policy`
    names what is done first, as `Engine` says.
    `record` is a folder for a new file with every event of the run, but no value: what it says can
    be replayed and asked (`rayorch-prefect replay`).
    At most `parent_events` Prefect events tell of published parents, and of failed ones; `hooks`
    are functions, or their names, by `on_parent_published`, `on_parent_failed` and
    `on_microbatch_end`: each gets what has ended.
    What stages log in their workers from `stage_log_level` on (DEBUG, INFO, WARNING, ERROR,
    CRITICAL; OFF for nothing; default WARNING) is in the log of the microbatch whose rows it is
    about.

    One run at a time owns a (destination, program): a second one ends as Failed named
    OwnedElsewhere, its message naming the owner, and takes no source. It takes over from an owner
    that died `lease_seconds` after its last heartbeat, or at once where its process can be seen
    to have ended.

    Cancelled in any way (at Prefect, by SIGTERM or Ctrl-C, or as an asyncio task), it puts
    everything away and returns a Cancelled state; only at the end of a time limit
    (`timeout_seconds`) CancelledError goes on to who set the limit.

    Raises UsageError or ProgramError for an argument or Program that will not do, StoreError if
    the store refuses the listing, the ledger or the manifest.
    """
    asked: dict[str, Any] = dict(locals())
    return await _run(open_night(**asked))


async def _run(night: Night) -> tuple[State[Any], NightSummary]:
    with opened(night):
        ended = await until_ended(night, _owned(night))
        if ended is not None:
            return ended
        night.settle_open_rows()
        return night.state(), night.summary()


async def _owned(night: Night) -> tuple[State[Any], NightSummary]:
    try:
        async with night.owned(flow_run_name()):
            return await _whole(night)
    except OwnedElsewhere as error:
        return night.without_sources(error), night.summary()


async def _whole(night: Night) -> tuple[State[Any], NightSummary]:
    try:
        await plan_night(night.id)
    except NoSources as error:
        return night.without_sources(error), night.summary()
    if night.order.dry_run:
        night.settle_open_rows()
        return night.state(), night.summary()
    async with night.engine_open(), logged_progress(night), watched_night(night):
        await night.run_microbatches(run_microbatch)
    await night.written(write_last_part(night.id))
    await night.publish_table()
    await note_missing(night)
    state = night.state()
    await tell_night(night, state)
    return state, night.summary()


@flow(name="nightly", persist_result=False)
async def nightly(
    program: str,
    source: str,
    destination: str,
    microbatch_size: int | None = None,
    max_active_microbatches: int | None = None,
    failure_policy: int | str | None = None,
    retry_failed: bool = False,
    upload_workers: int | None = None,
    ray_address: str | None = None,
    upload_group: int | None = None,
    upload_runner: str | None = None,
    limit: int | None = None,
    only: list[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    allow_empty: bool = False,
    working_dir: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    upload_task: str | None = None,
    lease_seconds: float | None = None,
    upload_tries: int | None = None,
    max_pending: int | None = None,
    max_pending_mb: float | str | None = None,
    policy: str | None = None,
    record: str | None = None,
    parent_events: int | None = None,
    stage_log_level: str | None = None,
    hooks: dict[str, str] | None = None,
) -> State[Any]:
    """Publish every source under `source` as `program` says; `run_night` has the parameters.

    Completed; Completed named PartiallyCompleted (or DryRun); Failed under the gravest kind's name
    (or NoSources, or OwnedElsewhere); or Cancelled.
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
        upload_group=upload_group,
        upload_runner=upload_runner,
        limit=limit,
        only=only,
        force=force,
        dry_run=dry_run,
        allow_empty=allow_empty,
        working_dir=working_dir,
        runtime_env=runtime_env,
        upload_task=upload_task,
        lease_seconds=lease_seconds,
        upload_tries=upload_tries,
        max_pending=max_pending,
        max_pending_mb=max_pending_mb,
        policy=policy,
        record=record,
        parent_events=parent_events,
        stage_log_level=stage_log_level,
        hooks=hooks,
    )
    if outermost():
        ignore_late_sigterm()
    return state
