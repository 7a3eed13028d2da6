"""One microbatch while it runs: from the Engine's completions to row outcomes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Failed

from rayorch_prefect.binding.artifacts import artifact_key, publish_failures
from rayorch_prefect.binding.futures import final_states
from rayorch_prefect.binding.publishing import publish_and_record, upload_failure
from rayorch_prefect.binding.rows import Row, manifest_row, not_processed, paths
from rayorch_prefect.binding.states import judge, to_state
from rayorch_prefect.binding.tallies import check_total, tally
from rayorch_prefect.errors import EngineClosed, InternalError, RayorchError, StoreError
from rayorch_prefect.execution.engine_run import Run
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.model.outcomes import Kind, ParentOutcome
from rayorch_prefect.storage import RowOutcome, Source, write_part

if TYPE_CHECKING:
    from rayorch_prefect.binding.night import Night

UPLOAD_PAUSES = (0.5, 1.0)
"""Seconds between the tries of a parent's upload; each try already retries its requests."""

# Failures that running again cannot change; the ledger decides what it does with them.
_RECORDED = (Kind.RECORD_FAILURE, Kind.GROUP_FAILURE)

Event: TypeAlias = Parent | BaseException
Submit: TypeAlias = Callable[[int, str], PrefectFuture[Any]]


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
        self._waiting: dict[int, Parent] = {}
        self._recording: list[asyncio.Task[None]] = []

    @property
    def sources(self) -> list[Source]:
        return [self.night.sources[position] for position in self.positions]

    @property
    def rows(self) -> list[Row]:
        """The rows settled so far, in source order."""
        found = (self.night.rows[position] for position in self.positions)
        return [row for row in found if row is not None]

    async def run(self, submit: Submit) -> None:
        """Run the slice; `submit(ordinal, source key)` starts the upload of a whole parent.

        Returns when every row is settled and every upload has ended. Cancelled, it makes the
        Engine forget the microbatch.
        """
        uploads: dict[int, PrefectFuture[Any]] = {}
        try:
            await self._follow(self.sources, submit, uploads)
        except RayorchError as error:
            self.night.broke(error)
        states = await final_states(uploads.values())
        for ordinal, state in zip(uploads, states, strict=True):
            self._check_upload(ordinal, state)
        await asyncio.gather(*self._recording)
        if self.night.reason:
            self.leave_unprocessed(self.night.reason)
        check_total(tally(self.rows), len(self.positions), f"microbatch {self.index}")

    def upload(self, ordinal: int) -> State[Any] | dict[str, Any]:
        """Publish one COMPLETED parent and record it; runs in a task's thread.

        Returns bytes and content hash by output key, or a Failed state named UploadFailed when
        the bounded tries are spent; either way the row is settled.
        """
        parent = self._waiting.pop(ordinal)
        row = self._row(parent, RowOutcome.PUBLISHED)
        try:
            done = self._publish(parent, row)
        except Exception as error:
            return self._upload_failed(ordinal, row, error)
        self._settle(ordinal, done)
        self.night.first_upload_at = self.night.first_upload_at or time.monotonic()
        return {artifact.key: [artifact.size, artifact.sha256] for artifact in done.artifacts}

    def write_manifest_part(self) -> str:
        """Store the manifest part of these rows; its URI. Raises StoreError."""
        shelf = self.night.shelf
        uri = write_part(
            [manifest_row(row) for row in self.rows],
            shelf.destination,
            shelf.program,
            self.night.id,
            part=self.index + 1,
        )
        self.part_written = True
        return uri

    async def publish_table(self) -> None:
        """The failed rows as a table artifact of the child flow run."""
        key = artifact_key("failed", self.night.shelf.program, "microbatch")
        await publish_failures(self.rows, key, self.night.manifest)

    def state(self) -> State[Any]:
        """The child's state, judged on its own rows."""
        counts = tally(self.rows)
        return to_state(judge(counts, self.night.order.failure_policy, self.night.next(counts)))

    def leave_unprocessed(self, reason: str) -> None:
        """Settle every row that is still open as not processed."""
        for position in self.positions:
            if self.night.rows[position] is None:
                source = self.night.sources[position]
                self.night.rows[position] = not_processed(source, reason)

    async def _follow(
        self, sources: list[Source], submit: Submit, uploads: dict[int, PrefectFuture[Any]]
    ) -> None:
        """Take the parents in the order in which the Engine completes them."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        run = self._start(sources, events)
        try:
            for _ in sources:
                parent = _raised(await events.get())
                if parent.outcome is not ParentOutcome.COMPLETED:
                    self._settle_without_upload(parent)
                    continue
                self._waiting[parent.index] = parent
                uploads[parent.index] = submit(parent.index, sources[parent.index].key)
                self.night.uploads += 1
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
        return self.night.engine.submit(sources, keys=keys, on_parent=hand_over)

    def _settle_without_upload(self, parent: Parent) -> None:
        dropped = parent.outcome is ParentOutcome.DROPPED
        row = self._row(parent, RowOutcome.DROPPED if dropped else RowOutcome.FAILED)
        self._settle(parent.index, row)
        if dropped or (row.failure and row.failure.kind in _RECORDED):
            self._recording.append(asyncio.create_task(self._record(row)))

    async def _record(self, row: Row) -> None:
        try:
            await asyncio.to_thread(self.night.shelf.record, row)
        except StoreError as error:
            # The outcome stands without its record: the next run merely computes it again.
            get_run_logger().warning(
                "%s is %s but not in the ledger: %s", row.source.key, row.outcome.value, error
            )

    def _publish(self, parent: Parent, row: Row) -> Row:
        """Upload with bounded tries; bytes go from the Ray object store to S3, not through here."""
        for pause in UPLOAD_PAUSES:
            try:
                return self._publish_once(parent, row)
            except StoreError:
                time.sleep(pause)
        return self._publish_once(parent, row)

    def _publish_once(self, parent: Parent, row: Row) -> Row:
        future = self.night.engine.apply(publish_and_record, parent, self.night.shelf, row)
        done: Row = future.result()
        return done

    def _upload_failed(self, ordinal: int, row: Row, error: Exception) -> State[Any]:
        if isinstance(error, (EngineClosed, CancelledError)):
            reason = f"its upload was cut off: {error}"
            self._settle(ordinal, not_processed(row.source, reason))
            return Failed(message=reason, data=error)
        tries = len(UPLOAD_PAUSES) + 1 if isinstance(error, StoreError) else 1
        failure = upload_failure(error, self.night.root_domain, tries)
        self._settle(ordinal, row.as_failed(failure, time.time()))
        return Failed(message=str(failure), data=error, name=failure.kind.value)

    def _check_upload(self, ordinal: int, state: State[Any]) -> None:
        """Settle a row whose task run ended without doing so, as after a crash of its thread."""
        position = self.positions[ordinal]
        if self.night.rows[position] is None:
            message = f"the upload's task run ended as {state.name}: {state.message}"
            row = Row(self.night.sources[position], RowOutcome.PUBLISHED)
            failure = upload_failure(InternalError(message), self.night.root_domain, 1)
            self._settle(ordinal, row.as_failed(failure, time.time()))

    def _settle(self, ordinal: int, row: Row) -> None:
        self.night.rows[self.positions[ordinal]] = row

    def _row(self, parent: Parent, outcome: RowOutcome) -> Row:
        return Row(
            source=parent.row,
            outcome=outcome,
            failure=parent.cause,
            missing=paths(parent.gaps),
            children=parent.children,
            attempts=parent.attempts,
            started=parent.started,
            finished=parent.finished,
        )


def _raised(event: Event) -> Parent:
    if isinstance(event, BaseException):
        raise event
    return event
