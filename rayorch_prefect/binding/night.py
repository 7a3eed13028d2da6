"""One run of the nightly flow: its sources, its microbatches, its Engine, its end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from rayorch_prefect.binding.artifacts import artifact_key, publish_failures
from rayorch_prefect.binding.block_access import given_to_workers
from rayorch_prefect.binding.child_runs import RunChild, child_end
from rayorch_prefect.binding.control_room import ControlRoom
from rayorch_prefect.binding.failure_policies import FailurePolicy, StoppedAtFailure, Totals
from rayorch_prefect.binding.hooks import Hook
from rayorch_prefect.binding.listeners import parent_end
from rayorch_prefect.binding.microbatch import Microbatch
from rayorch_prefect.binding.orders import NextStep, Order, what_next
from rayorch_prefect.binding.ownership import Claim, owning
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.rows import Row, manifest_row, not_processed
from rayorch_prefect.binding.selection import select
from rayorch_prefect.binding.stage_logs import in_this_run
from rayorch_prefect.binding.states import cancelled, judge, to_state
from rayorch_prefect.binding.stopping import Stop
from rayorch_prefect.binding.summaries import NightSummary
from rayorch_prefect.binding.tallies import Tally, check_total, tally
from rayorch_prefect.binding.upload_tasks import UploadTask
from rayorch_prefect.errors import EngineClosed, LeaseLost, RayorchError, StoreError
from rayorch_prefect.execution.cluster import own_sigterm
from rayorch_prefect.execution.engine import Engine
from rayorch_prefect.execution.metrics import EngineMetrics
from rayorch_prefect.execution.plain_text import writable
from rayorch_prefect.model.outcomes import Failure
from rayorch_prefect.program import Program
from rayorch_prefect.replay.recorder import new_file
from rayorch_prefect.replay.redaction import redaction
from rayorch_prefect.storage import (
    RowOutcome,
    Source,
    StoreFeatures,
    empty_other_parts,
    manifest_location,
    probe,
    sweep_uploads,
    write_part,
)
from rayorch_prefect.storage.manifest import load_parquet
from rayorch_prefect.storage.owner import Owner
from rayorch_prefect.storage.row_outcomes import MOVES, RowStage

DRY_RUN = "DryRun"

_DRY_RUN_REASON = "a dry run starts nothing"
_SIGTERM_SECONDS = 0.01
_LEAVE_SECONDS = 2.0
_LAST_PART_SECONDS = 4.0
_UNKNOWN_REASON = "the run ended before this source was looked at"

logger = logging.getLogger(__name__)


class Night:
    """The state that one nightly flow run shares with its child flows and tasks.

    `rows[i]` is what became of `sources[i]`, None while that is open. Tasks write to it from
    their threads, one row each. `upload_task` uploads in place of ours. `waiting` says what the
    Engine's start waits for, empty if it does not; `report` is where the report was stored.
    """

    def __init__(
        self,
        id: str,
        program: Program,
        order: Order,
        upload_task: UploadTask | None = None,
        hooks: Mapping[str, Hook] | None = None,
    ) -> None:
        program.require_publishable()
        plan = program.plan
        self.id = id
        self.program = program
        self.order = order
        self.failure_policy = FailurePolicy.parse(order.failure_policy)
        self.upload_task = upload_task
        self.hooks = hooks or {}
        self.shelf = Shelf(order.destination, plan.name, plan.fingerprint)
        self.root_domain = plan.domains[0].name
        self.sources: list[Source] = []
        self.rows: list[Row | None] = []
        self.microbatches: list[Microbatch] = []
        self.uploads = 0
        self.flow_runs = 1
        self.started_at = time.monotonic()
        self.control = ControlRoom(self.started_at)
        self.first_upload_at: float | None = None
        self.ended_at: float | None = None
        self.planned = ""
        self.waiting = ""
        self.left = ""
        self.report = ""
        self.reason = _DRY_RUN_REASON if order.dry_run else ""
        self.stop = Stop()
        self.prefect_away = False
        self.task_runs_missing: int | None = 0
        self.metrics: EngineMetrics | None = None
        self._engine: Engine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._redact = redaction()
        self._counting = threading.Lock()
        self._to_run = 0
        self._failed_now = 0
        self._failed_before = 0

    @property
    def engine(self) -> Engine:
        """The Engine that all microbatches share. Raises EngineClosed outside `engine_open`."""
        if self._engine is None:
            raise EngineClosed("the night's Engine is not open")
        return self._engine

    @property
    def manifest(self) -> str:
        """The manifest's URI."""
        return str(manifest_location(self.order.destination, self.shelf.program, self.id))

    def probe(self) -> str:
        """See what the destination's store honours; one line. Raises StoreError.

        What the probe had to leave there is in `left`. A dry run writes nothing, so it does not
        look.
        """
        if self.order.dry_run:
            return "the store is not probed in a dry run"
        self.left = self.features.left
        return self.features.describe()

    @cached_property
    def features(self) -> StoreFeatures:
        """What the destination's store honours. Raises StoreError."""
        return probe(self.order.destination)

    @asynccontextmanager
    async def owned(self, run_name: str) -> AsyncIterator[None]:
        """Own the (destination, program) inside, as flow run `run_name`; a dry run does not.

        Raises OwnedElsewhere, naming the run that owns it; UsageError if two runs cannot be kept
        apart; StoreError.
        """
        if self.order.dry_run:
            yield
            return
        features = await asyncio.to_thread(lambda: self.features)
        claim = Claim(
            self.order.destination,
            self.shelf.program,
            Owner(self.id, run_name),
            self.order.lease_seconds,
            features.conditional_create and features.conditional_update,
        )
        async with owning(claim, self._on_lost(asyncio.get_running_loop())) as lease:
            died = lease.taken_from
            self.shelf = replace(
                self.shelf.by_terms_of(features, self.order.s3_part_bytes),
                fence=lease.fence(),
                follows=died.owner.since if died else "",
            )
            yield

    def _on_lost(self, loop: asyncio.AbstractEventLoop) -> Callable[[LeaseLost], None]:
        def lost(error: LeaseLost) -> None:
            # The loop may be closed already: then nothing is left to stop.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(partial(self.break_off, error))

        return lost

    def break_off(self, error: RayorchError) -> None:
        """Begin nothing more, on the flow's loop: what is open is not processed for `error`."""
        self.broke(error)
        for batch in self.microbatches:
            batch.break_off(error)

    def sweep(self, *, behind: bool = False) -> str:
        """Close the uploads in parts that runs of this program left open; one line, or none.

        For a time when none of them uploads: before this one does, or `behind` it. What the store
        refuses is told, and left to the next.
        """
        if self.order.dry_run:
            return ""
        try:
            closed = sweep_uploads(self.shelf.open_uploads, forget_late=not behind)
        except StoreError as error:
            return f"uploads in parts may have been left open: {error}"
        return f"uploads in parts that had been left open: {closed}, closed now" if closed else ""

    async def _sweep_behind(self) -> None:
        """Close what uploads that were cut off with their processes could not close themselves."""
        sweeping = asyncio.ensure_future(asyncio.to_thread(self.sweep, behind=True))
        done, _ = await asyncio.wait(
            [sweeping], timeout=_LEAVE_SECONDS if self.stop.reason else None
        )
        left = (
            sweeping.result() if done else "uploads in parts may be open: the next run closes them"
        )
        if left:
            get_run_logger().warning("%s", left)

    def plan(self) -> dict[str, int]:
        """Choose the sources and cut microbatches of those that run; the counts.

        Raises NoSources, UsageError or StoreError, as `select` does.
        """
        selection = select(self.order, self.shelf)
        if self.stop.reason:
            return selection.counts()  # too late: the night ends without looking at them
        self.sources = [each.source for each in selection.chosen]
        self.rows = [each.row for each in selection.chosen]
        assert all(row is None or (RowStage.LISTED, row.outcome) in MOVES for row in self.rows)
        self.planned = selection.describe()
        self._to_run = len(selection.to_run)
        self._failed_before = sum(row is not None and row.failure is not None for row in self.rows)
        self._cut([] if self.order.dry_run else selection.to_run)
        return {**selection.counts(), "microbatches": len(self.microbatches)}

    @asynccontextmanager
    async def engine_open(self) -> AsyncIterator[None]:
        """The Engine, started without holding up the loop and left whatever happens.

        An Engine that does not start leaves the night broken: its rows are not processed.
        """
        if not self.microbatches or self.stop.reason:
            yield
            return
        engine = Engine(
            self.program,
            address=self.order.ray_address,
            appliers=self.order.upload_workers,
            runtime_env=self.order.worker_environment(),
            on_wait=partial(self._waits, get_run_logger()),
            on_still=partial(get_run_logger().warning, "%s"),
            max_pending=self.order.max_pending,
            max_pending_mb=self.order.max_pending_mb,
            policy=self.order.policy,
            record=self._recording(),
            log_level=self.order.stage_log_level,
            on_line=in_this_run(),
        )
        self.stop.then(engine.give_up)
        # Loaded with the first part written it would hold the run up for most of a second.
        loading = asyncio.ensure_future(asyncio.to_thread(load_parquet))
        try:
            await _entered(engine)
            await loading
        except RayorchError as error:
            self.broke(error)
            yield
            return
        finally:
            self.waiting = ""
        self._engine = engine
        try:
            async with given_to_workers(self.order.source, self.order.destination):
                yield
        finally:
            self.metrics = engine.metrics
            self._engine = None
            patience_s = _LEAVE_SECONDS if self.stop.reason else None
            await _ours_to_the_end(asyncio.to_thread(engine.leave, patience_s))
            await self._sweep_behind()

    def _recording(self) -> Path | None:
        """The file for a recording, if one is wanted; the run's log says where it is."""
        if self.order.record is None:
            return None
        path = new_file(self.order.record, self.program.plan.name)
        get_run_logger().info("the run's events are recorded in %s", path)
        return path

    def _waits(self, run_logger: Any, text: str) -> None:
        """What the Engine's start waits for: to the run's log, and for whoever shows progress."""
        self.waiting = text
        run_logger.warning("%s", text)

    async def run_microbatches(self, run_child: RunChild) -> None:
        """Run every microbatch as a child flow, at most `max_active_microbatches` at a time."""
        self._loop = asyncio.get_running_loop()
        waiting = iter(self.microbatches)

        async def take_turns() -> None:
            # One task each: what has ended keeps nothing of its flow run.
            for batch in waiting:
                if self.reason:
                    return
                await asyncio.create_task(self._run_one(batch, run_child))

        turns = range(self.order.max_active_microbatches)
        await asyncio.gather(*(take_turns() for _ in turns))

    async def _run_one(self, batch: Microbatch, run_child: RunChild) -> None:
        self.flow_runs += 1
        try:
            state = await child_end(batch, run_child)
        finally:
            batch.ended = True
        batch.leave_unprocessed(f"microbatch {batch.index} ended as {state.name}: {state.message}")
        batch.forget_outputs()

    def cancel(self, reason: str) -> None:
        """Stop all of it: nothing is begun any more. The first reason stands."""
        if not self.stop.reason:
            logger.warning("the night ends early, %s", reason)
        self.reason = self.reason or reason
        self.stop.ask(reason)
        for batch in self.microbatches:
            batch.stop.ask(reason)

    def broke(self, error: RayorchError) -> None:
        """Remember why the night cannot go on; the first reason stands."""
        self.reason = self.reason or self.told(f"{type(error).__name__}: {error}")

    def write_last_part(self) -> str:
        """Store a manifest part with every row that no microbatch wrote; the manifest's URI.

        Settles what is still open as not processed. Parts that an earlier try of the same flow run
        left are emptied. Raises StoreError.
        """
        self.settle_open_rows()
        batches = [batch for batch in self.microbatches if batch.part_written]
        written = {position for batch in batches for position in batch.positions}
        parts = {0, *(batch.part for batch in batches)}
        empty_other_parts(self.order.destination, self.shelf.program, self.id, parts)
        rows = [manifest_row(row) for i, row in enumerate(self.rows) if row and i not in written]
        write_part(rows, self.order.destination, self.shelf.program, self.id, part=0)
        return self.manifest

    async def written(self, last_part: Awaitable[str]) -> None:
        """Wait for `write_last_part`; a cancelled night does so for a few seconds at most.

        Raises StoreError, but not in a cancelled night.
        """
        writing = asyncio.ensure_future(last_part)
        in_time = await self.stop.or_done(writing, grace_s=_LAST_PART_SECONDS)
        if not self.stop.reason:
            await writing
        elif not in_time or writing.cancelled() or writing.exception() is not None:
            writing.cancel()
            logger.warning("the manifest of the cancelled night could not be finished in time")

    async def publish_table(self) -> None:
        """The failed rows of the whole night as a table artifact."""
        rows = [row for row in self.rows if row is not None]
        await publish_failures(rows, artifact_key("failed", self.shelf.program), self.manifest)

    def tally(self) -> Tally:
        """The counts of the rows settled so far."""
        return tally(row for row in self.rows if row is not None)

    def next_step(self, counts: Tally) -> NextStep:
        """What to run next."""
        return what_next(self.order, counts)

    def redacted(self, failure: Failure) -> Failure:
        """The same failure without the secrets of this process, in texts that can be written."""
        return replace(failure, type=self.told(failure.type), message=self.told(failure.message))

    def told(self, text: str) -> str:
        """The same text, as it may be shown and can be written."""
        return writable(self._redact(text))

    def settle(self, position: int, row: Row, stage: RowStage) -> None:
        """Say what became of a source that was run, from this stage; called from any thread.

        Only the first time counts: an upload may end after its microbatch has given it up.
        """
        if self._is_first(position, row):
            self.control.settled(row, stage is RowStage.WHOLE)
            if row.outcome in (RowOutcome.PUBLISHED, RowOutcome.FAILED):
                self.control.tell(parent_end(self.shelf.program, str(self.order.destination), row))
            if row.failure is not None and self.failure_policy.stops_at(row.failure):
                self._stop_at(row)

    def leave_unprocessed(self, positions: Iterable[int], reason: str) -> None:
        """Settle those of the sources that are still open as not processed."""
        told = self.told(reason)
        for position in [each for each in positions if self.rows[each] is None]:
            self._is_first(position, not_processed(self.sources[position], told))

    def _is_first(self, position: int, row: Row) -> bool:
        # An upload's thread may settle a row in the moment in which the loop gives it up.
        with self._counting:
            if first := self.rows[position] is None:
                self.rows[position] = row
                self._failed_now += row.outcome is RowOutcome.FAILED
            return first

    def _stop_at(self, row: Row) -> None:
        policy = self.failure_policy.text
        error = StoppedAtFailure(
            f"{row.source.key} failed as {row.cause}; failure_policy {policy!r} stops the night"
        )
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self.break_off, error)

    def totals(self) -> Totals:
        """What a failure policy looks at, so far; the sources are all that the night will have."""
        now = self._failed_now  # a tally of all rows at the end of each microbatch would add up
        return Totals(len(self.sources), self._failed_before + now, self._to_run, now)

    def state(self) -> State[Any]:
        """The night's state, from the counts. Raises InternalError if they do not add up."""
        self.ended_at = time.monotonic()
        counts = self.tally()
        check_total(counts, len(self.sources), f"night {self.id}")
        if self.order.dry_run:
            return Completed(name=DRY_RUN, message=f"nothing was started. {self.planned}")
        if self.stop.reason:
            return cancelled(counts, self.stop.reason, str(self.next_step(counts)))
        if not self.sources:
            return Completed(message=f"no sources under {self.order.source}")
        return to_state(judge(counts, self.failure_policy, str(self.next_step(counts))))

    def without_sources(self, error: RayorchError) -> State[Any]:
        """The state of a night that took no source: nothing to read, or another run's to do.

        It is named by the error: what was asked for has not been done, and that must be noticed.
        """
        self.ended_at = time.monotonic()
        return Failed(name=type(error).__name__, message=str(error), data=error)

    def summary(self) -> NightSummary:
        """The counts and times so far."""
        until = self.ended_at or time.monotonic()
        first = self.first_upload_at
        return NightSummary.of(
            self.tally(),
            self.live_metrics(),
            flow_runs=self.flow_runs,
            upload_task_runs=self.uploads,
            first_upload_s=None if first is None else first - self.started_at,
            wall_s=until - self.started_at,
            manifest=self.manifest,
            task_runs_missing=self.task_runs_missing,
        )

    def live_metrics(self) -> EngineMetrics | None:
        """The Engine's counters, the last ones after it is left, None before it starts."""
        return self._engine.metrics if self._engine is not None else self.metrics

    def show_parents(self, ended: Mapping[str, int]) -> None:
        """Have Ray's metrics show how many sources ended so far, by row outcome."""
        if self._engine is not None:
            self._engine.show_parents(ended)

    def _cut(self, positions: list[int]) -> None:
        size = self.order.microbatch_size
        slices = [positions[start : start + size] for start in range(0, len(positions), size)]
        self.microbatches = [Microbatch(self, index, cut) for index, cut in enumerate(slices)]

    def settle_open_rows(self) -> None:
        """Every source that is still open was not processed."""
        self.leave_unprocessed(range(len(self.rows)), self.reason or _UNKNOWN_REASON)


async def _entered(engine: Engine) -> None:
    entering = asyncio.ensure_future(asyncio.to_thread(engine.__enter__))
    try:
        await _ours_to_the_end(entering)
    except asyncio.CancelledError:
        # The thread cannot be stopped: actors it still starts must not outlive the flow.
        await asyncio.wait([entering])
        if entering.exception() is None:
            await asyncio.to_thread(engine.__exit__, None, None, None)
        raise


async def _ours_to_the_end(work: Awaitable[Any]) -> None:
    """Wait for a thread that starts or ends Ray.

    Ray takes SIGTERM over as it starts, and gives it to nobody as it ends; only this thread, if
    any, can take it back.
    """
    ending = asyncio.ensure_future(work)
    while not ending.done():
        with own_sigterm():
            await asyncio.wait([ending], timeout=_SIGTERM_SECONDS)
    ending.result()
