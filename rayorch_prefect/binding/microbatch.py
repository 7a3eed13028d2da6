"""One microbatch while it runs: from the Engine's completions to row outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Failed

from rayorch_prefect.binding.artifacts import artifact_key, publish_failures
from rayorch_prefect.binding.failed_runs import FailedRuns
from rayorch_prefect.binding.futures import Upload, cut_off, final_states
from rayorch_prefect.binding.publishing import (
    STAGE,
    is_lost,
    plain,
    publish_and_record,
    upload_failure,
)
from rayorch_prefect.binding.rows import Row, manifest_row, not_processed, paths
from rayorch_prefect.binding.stage_logs import in_this_run
from rayorch_prefect.binding.stage_watch import Look
from rayorch_prefect.binding.states import cancelled, judge, to_state
from rayorch_prefect.binding.stopping import Stop
from rayorch_prefect.binding.tallies import check_total, tally
from rayorch_prefect.binding.upload_groups import UploadGroup, in_rounds, tries_of
from rayorch_prefect.errors import (
    EngineClosed,
    InternalError,
    LeaseLost,
    RayorchError,
    StoreError,
)
from rayorch_prefect.execution.engine_run import Run
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.model.outcomes import Failure, Kind, ParentOutcome
from rayorch_prefect.storage import RowOutcome, Source, write_part
from rayorch_prefect.storage.row_outcomes import MOVES, RowStage

if TYPE_CHECKING:
    from rayorch_prefect.binding.night import Night

# Failures that running again cannot change; the ledger decides what it does with them.
_RECORDED = (Kind.RECORD_FAILURE, Kind.GROUP_FAILURE)

UPLOAD_SECONDS = 4.0
"""How long uploads under way are waited for once a microbatch is to stop; then they are cut off."""

CUT_SECONDS = 2.0
"""How long it may take until the ends of cut off uploads are known."""

# None wakes up whoever waits for an event.
Event: TypeAlias = Parent | BaseException | None
Submit: TypeAlias = Callable[[list[int], str], Upload]
Taken: TypeAlias = dict[int, tuple[Parent, Row]]


class Microbatch:
    """The slice of sources that one child flow run owns.

    `positions[i]` is where source i of the slice stands among the night's sources; it is also
    the parent's index in the Engine's run.
    """

    def __init__(self, night: Night, index: int, positions: Sequence[int]) -> None:
        self.night = night
        self.index = index
        self.positions = positions
        self.part_written = False
        self.stop = Stop()
        self.flow_run_id = ""
        self.ended = False
        self.looked = Look(0.0)
        self.failed_runs: FailedRuns | None = None
        self._applied: set[Future[Row]] = set()
        self._waiting: dict[int, Parent] = {}
        self._events: asyncio.Queue[Event] | None = None
        self._recording: list[asyncio.Task[None]] = []

    @property
    def part(self) -> int:
        """The number of its manifest part."""
        return self.index + 1

    @property
    def is_open(self) -> bool:
        """Whether its flow run has begun and not ended."""
        return bool(self.flow_run_id) and not self.ended

    @property
    def sources(self) -> list[Source]:
        return [self.night.sources[position] for position in self.positions]

    @property
    def rows(self) -> list[Row]:
        """The rows settled so far, in source order."""
        found = (self.night.rows[position] for position in self.positions)
        return [row for row in found if row is not None]

    async def run(self, submit: Submit) -> None:
        """Run the slice; `submit(ordinals, name)` starts the upload of a group of whole parents.

        Returns when every row is settled and every upload has ended; a few seconds after it was
        asked to stop if some do not end. Cancelled, it makes the Engine forget the microbatch.
        """
        self.flow_run_id = _flow_run_id()
        uploads = UploadGroup(self.night.order.upload_group, self._submitted_by(submit))
        try:
            await self._follow(self.sources, uploads)
        except RayorchError as error:
            self.night.broke(error)
        if self.stop.reason:
            uploads.drop()
        uploads.close()
        await self._ended(uploads)
        if reason := self.stop.reason or self.night.reason:
            self.leave_unprocessed(reason)
        check_total(tally(self.rows), len(self.positions), f"microbatch {self.index}")

    async def _ended(self, uploads: UploadGroup) -> None:
        """Wait for what is under way; when it is to stop, only so long."""
        states = asyncio.ensure_future(final_states(uploads.futures))
        if not await self.stop.or_done(states, grace_s=UPLOAD_SECONDS):
            for future in uploads.futures:
                cut_off(future)
            self.night.engine.cut_off(self._applied)
        if not await self.stop.or_done(states, *self._recording, grace_s=CUT_SECONDS):
            get_run_logger().warning("some uploads had not ended when the microbatch did")
            return
        for recording in self._recording:
            recording.result()
        for ordinals, state in zip(uploads.closed, states.result(), strict=True):
            self._check_upload(ordinals, state)

    def break_off(self, error: RayorchError) -> None:
        """Take no more parents, on the flow's loop: what is open is not processed for `error`."""
        if self._events is not None:
            self._events.put_nowait(error)

    def upload(self, ordinals: Sequence[int]) -> State[Any] | dict[str, Any]:
        """Publish COMPLETED parents, each by itself, and record them; runs in a task's thread.

        Returns bytes and content hash by output key, or a Failed state named UploadFailed when
        the bounded tries of some are spent; either way every row is settled.
        """
        if self.stop.reason:
            return Cancelled(message=self.stop.reason)
        taken = self.take(ordinals)
        asked: dict[int, Callable[[], Future[Row]]] = {
            ordinal: partial(self._apply, parent, row) for ordinal, (parent, row) in taken.items()
        }
        ends = in_rounds(
            asked, self.night.order.upload_tries, stopped=lambda: bool(self.stop.reason)
        )
        return self.end_uploads(taken, ends)

    def take(self, ordinals: Sequence[int]) -> Taken:
        """COMPLETED parents that wait for their upload, each with its row as published."""
        parents = {ordinal: self._waiting.pop(ordinal) for ordinal in ordinals}
        return {
            ordinal: (parent, self._row(parent, RowOutcome.PUBLISHED))
            for ordinal, parent in parents.items()
        }

    def end_uploads(
        self,
        taken: Taken,
        ends: Iterable[tuple[int, Row | Exception]],
        stage: str = STAGE,
        attempts: int | None = None,
    ) -> State[Any] | dict[str, Any]:
        """Settle each taken parent by its end, its row or an error; returns as `upload` does.

        A failure names `stage` and `attempts`, by default those of our own upload.
        """
        stored: dict[str, Any] = {}
        failed: list[State[Any]] = []
        for ordinal, end in ends:
            if isinstance(end, Row):
                self._settle(ordinal, end)
                self.night.first_upload_at = self.night.first_upload_at or time.monotonic()
                stored |= {each.key: [each.size, each.sha256] for each in end.artifacts}
            else:
                most = self.night.order.upload_tries
                tries = tries_of(end, most) if attempts is None else attempts
                failure = self.night.redacted(
                    upload_failure(end, self.night.root_domain, tries, stage)
                )
                failed.append(self._upload_failed(ordinal, taken[ordinal][1], end, failure))
        return _gravest(failed, len(taken)) if failed else stored

    def show_failed(self, ordinal: int) -> None:
        """Give a row that has failed a task run that says so, where no other does."""
        row = self.night.rows[self.positions[ordinal]]
        if row is not None and row.failure and self.failed_runs is not None:
            self.failed_runs.add(row)

    def write_manifest_part(self) -> str:
        """Store the manifest part of these rows; its URI. Raises StoreError."""
        shelf = self.night.shelf
        uri = write_part(
            [manifest_row(row) for row in self.rows],
            shelf.destination,
            shelf.program,
            self.night.id,
            part=self.part,
        )
        self.part_written = True
        return uri

    async def publish_table(self) -> None:
        """The failed rows as a table artifact of the child flow run."""
        key = artifact_key("failed", self.night.shelf.program, "microbatch")
        await publish_failures(self.rows, key, self.night.manifest)

    def state(self) -> State[Any]:
        """The child's state: its own rows, and what the night's failure policy says so far."""
        counts = tally(self.rows)
        if self.stop.reason:
            return cancelled(counts, self.stop.reason)
        night = self.night
        next_step = str(night.next_step(counts))
        return to_state(judge(counts, night.failure_policy, next_step, night.totals()))

    def forget_outputs(self) -> None:
        """Keep of the rows in its manifest part only what the night counts and tells of."""
        if self.part_written:
            rows, sources = self.night.rows, self.night.sources
            for position in self.positions:
                if (row := rows[position]) is not None:
                    rows[position] = row.without_outputs(sources[position])

    def leave_unprocessed(self, reason: str) -> None:
        """Settle every row that is still open as not processed."""
        self.night.leave_unprocessed(self.positions, reason)

    def _submitted_by(self, submit: Submit) -> Callable[[list[int]], Upload]:
        def submitted(ordinals: list[int]) -> Upload:
            first = self.night.sources[self.positions[ordinals[0]]].key
            more = f" and {len(ordinals) - 1} more" if len(ordinals) > 1 else ""
            self.night.uploads += 1
            self.night.control.uploads_begun(len(ordinals))
            return submit(ordinals, f"{first}{more}")

        return submitted

    async def _follow(self, sources: list[Source], uploads: UploadGroup) -> None:
        """Take the parents in the order in which the Engine completes them."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        self._events = events
        run = self._start(sources, events)
        self.stop.then(lambda: events.put_nowait(None))
        try:
            for _ in sources:
                parent = _raised(await uploads.closed_in_time(events))
                if parent is None or self.stop.reason:
                    run.abandon()
                    return
                if parent.outcome is not ParentOutcome.COMPLETED:
                    self._settle_without_upload(parent)
                    continue
                self._waiting[parent.index] = parent
                uploads.add(parent.index)
        except BaseException:
            run.abandon()
            raise

    def _start(self, sources: list[Source], events: asyncio.Queue[Event]) -> Run:
        loop = asyncio.get_running_loop()

        def hand_over(event: Event) -> None:
            # After a cancel the loop may be closed before the Engine has forgotten us.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(events.put_nowait, event)

        keys = [source.uri for source in sources]
        lines = in_this_run(lambda parent: sources[parent].key)
        return self.night.engine.submit(sources, keys=keys, on_parent=hand_over, on_line=lines)

    def _settle_without_upload(self, parent: Parent) -> None:
        dropped = parent.outcome is ParentOutcome.DROPPED
        row = self._row(parent, RowOutcome.DROPPED if dropped else RowOutcome.FAILED)
        self._settle(parent.index, row, RowStage.RUNS)
        self.show_failed(parent.index)
        if dropped or (row.failure and row.failure.kind in _RECORDED):
            self._recording.append(asyncio.create_task(self._record(row)))

    async def _record(self, row: Row) -> None:
        try:
            await asyncio.to_thread(self.night.shelf.record, row)
        except (StoreError, LeaseLost) as error:
            # The outcome stands without its record: the next run merely computes it again.
            get_run_logger().warning(
                "%s is %s but not in the ledger: %s", row.source.key, row.outcome.value, error
            )

    def _apply(self, parent: Parent, row: Row) -> Future[Row]:
        """Begin one try; bytes go from the Ray object store to S3, not through here."""
        if self.stop.reason:
            raise EngineClosed(self.stop.reason)
        future = self.night.engine.apply(publish_and_record, parent, self.night.shelf, row)
        self._applied.add(future)
        future.add_done_callback(self._applied.discard)
        return future

    def _upload_failed(
        self, ordinal: int, row: Row, error: Exception, failure: Failure
    ) -> State[Any]:
        if self.stop.reason or isinstance(error, (EngineClosed, CancelledError)) or is_lost(error):
            reason = self.night.told(f"{self.stop.reason or plain(error)}; its upload was cut off")
            self._settle(ordinal, not_processed(row.source, reason))
            ended = Cancelled if self.stop.reason else Failed
            return ended(message=reason, data=error)
        self._settle(ordinal, row.as_failed(failure, time.time()))
        return Failed(message=str(failure), data=error, name=failure.kind.value)

    def _check_upload(self, ordinals: Sequence[int], state: State[Any]) -> None:
        """Settle rows whose task run ended without doing so, as after a crash of its thread."""
        if self.stop.reason:
            return
        message = f"the upload's task run ended as {state.name}: {state.message}"
        error = InternalError(message)
        failure = self.night.redacted(upload_failure(error, self.night.root_domain, 1))
        for ordinal in ordinals:
            position = self.positions[ordinal]
            if self.night.rows[position] is None:
                row = Row(self.night.sources[position], RowOutcome.PUBLISHED)
                self._settle(ordinal, row.as_failed(failure, time.time()))
        if len(ordinals) > 1:  # their task run is named after one of them, who may be well
            for ordinal in ordinals:
                self.show_failed(ordinal)

    def _settle(self, ordinal: int, row: Row, stage: RowStage = RowStage.WHOLE) -> None:
        assert (stage, row.outcome) in MOVES, f"{stage.value} -> {row.outcome.value}"
        self.night.settle(self.positions[ordinal], row, stage)

    def _row(self, parent: Parent, outcome: RowOutcome) -> Row:
        return Row(
            source=parent.row,
            outcome=outcome,
            failure=self.night.redacted(parent.cause) if parent.cause else None,
            missing=paths(parent.gaps),
            children=parent.children,
            attempts=parent.attempts,
            started=parent.started,
            finished=parent.finished,
        )


def _gravest(failed: Sequence[State[Any]], of: int) -> State[Any]:
    """One Failed state for a group's; that of a program's defect goes before a store's."""
    if of == 1:
        return failed[0]
    worst = next((each for each in failed if each.name == Kind.CONTRACT_ERROR.value), failed[0])
    message = f"{len(failed)} of {of} uploads failed: {worst.message}"
    return Failed(message=message, data=worst.data, name=worst.name)


def _flow_run_id() -> str:
    context = FlowRunContext.get()
    return str(context.flow_run.id) if context and context.flow_run else ""


def _raised(event: Event) -> Parent | None:
    if isinstance(event, BaseException):
        raise event
    return event
