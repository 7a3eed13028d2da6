"""The driver loop's body: backend messages become events, instructions become calls.

Knows neither Ray nor threads: `Engine` feeds it from one thread, `run_local` in place.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch_prefect.errors import ObjectStoreFull, RayorchError, StageStartError
from rayorch_prefect.execution.backend import (
    Backend,
    BackendMessage,
    BatchReply,
    TakeBackAnswer,
    WorkerHasRetired,
    WorkerIsAt,
    WorkerIsLost,
    WorkerIsReady,
)
from rayorch_prefect.execution.blocks import Blocks
from rayorch_prefect.execution.codec import EncodedChunk
from rayorch_prefect.execution.deadlines import Deadlines
from rayorch_prefect.execution.messages import (
    BatchMessage,
    ChunkAddress,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)
from rayorch_prefect.execution.parent import OnParent, Parent, Payload
from rayorch_prefect.execution.rows import DescribedRows
from rayorch_prefect.model.events import (
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    DeadlinePassed,
    DispatchBatch,
    EndWorker,
    Event,
    ForgetBar,
    Instruction,
    MicrobatchAbandoned,
    MicrobatchClosed,
    ParentCompleted,
    ReleaseValues,
    RetireWorker,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    StopRun,
    TakeBack,
    TellBars,
    WorkerLost,
    WorkerReady,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import ParentOutcome
from rayorch_prefect.model.reports import AttemptFailed, OutputReport, Report, RowsReport
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.core import Scheduler

logger = logging.getLogger(__name__)

MOST_LARGE_RETURNS = 8


@dataclass(slots=True)
class _Owner:
    """Who gets the parents of a microbatch."""

    rows: Sequence[Any]
    keys: Sequence[str]
    on_parent: OnParent
    started: float


class Driver:
    """Scheduler, stored values and workers of one Engine. Not thread-safe.

    `clock` is the time of day, `timer` one that never jumps; both in seconds.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        clock: Callable[[], float],
        batches_at_worker: int = 2,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan, batches_at_worker)
        self.blocks = Blocks()
        self.busy_s = [0.0] * len(plan.calls)
        self.error: RayorchError | None = None
        self._backend = backend
        self._clock = clock
        self._timer = timer
        self._deadlines = Deadlines(plan)
        self._owners: dict[int, _Owner] = {}
        self._next_microbatch = 0
        self._wants_large = [True] * len(plan.calls)
        self._lost: set[int] = set()
        self._events: deque[Event] = deque()

    def start(self) -> None:
        """Ask for all workers."""
        self._obey(self.scheduler.start())

    @property
    def all_ready(self) -> bool:
        """Whether no worker is still being started."""
        return not any(self.scheduler.workers.starting)

    @property
    def active(self) -> int:
        """Microbatches that have not ended."""
        return len(self._owners)

    # -- runs --------------------------------------------------------------------------------

    def submit(
        self,
        rows: Sequence[Any],
        keys: Sequence[str],
        described: DescribedRows,
        on_parent: OnParent,
    ) -> int:
        """Admit a microbatch; returns its number. Parents come through `on_parent`."""
        number = self._next_microbatch
        self._next_microbatch += 1
        owner = _Owner(rows, keys, on_parent, self._clock())
        if self.error is not None:
            self._tell(number, owner, self.error)
            return number
        self._owners[number] = owner
        stored, refused = self._rows_stored(described)
        first = self.blocks.store([(1, data) for data in stored])
        source = OutputReport(first, len(described.chunks), described.shapes, described.mask)
        invalid = (*described.invalid, *refused.items())
        self._apply(SourceAdmitted(number, len(rows), source, invalid))
        return number

    def _rows_stored(self, described: DescribedRows) -> tuple[list[Any], dict[int, str]]:
        """The data of each source value, and the rows that the object store did not take."""
        stored: list[Any] = []
        refused: dict[int, str] = {}
        for index, chunk in enumerate(described.chunks):
            try:
                data = self._row_data(chunk)
            except ObjectStoreFull as error:
                # The others go on; such a row is refused, and its values are let go unread.
                data = b""
                said = f"{chunk.size} bytes that could not be stored: {error}"
                refused[described.row_of(index)] = said
            stored.append(data)
        return stored, refused

    def _row_data(self, chunk: EncodedChunk) -> Any:
        if chunk.small is not None:
            return chunk.small
        return ChunkAddress(self._backend.keep(chunk.large), 0)

    def abandon(self, microbatch: int) -> None:
        """Forget a microbatch; its parents are not delivered any more."""
        if self._owners.pop(microbatch, None) is not None:
            self._apply(MicrobatchAbandoned(microbatch))

    def fail(self, error: RayorchError) -> None:
        """Nothing goes on: every open run is told. The first error stands."""
        self.error = self.error or error
        while self._owners:
            number, owner = self._owners.popitem()
            self._tell(number, owner, error)

    # -- deadlines -----------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float:
        """When to call `tick`, in the timer's seconds; infinity if there is nothing to wait for."""
        return math.inf if self.error is not None else self._deadlines.next

    def tick(self) -> None:
        """Deal with the deadlines that have come."""
        late, suspects = self._deadlines.due(self._timer())
        for running in late:
            self._apply(DeadlinePassed(running.batch, running.worker))
        for running in suspects:
            self._backend.look(running.worker, running.batch)

    def _seen(self, seen: WorkerIsAt) -> None:
        row = self._deadlines.seen(seen.worker, seen.batch, seen.place, self._timer())
        if row is not None:
            self._apply(DeadlinePassed(seen.batch, seen.worker, row))

    def _time(self, worker: int) -> None:
        """Another batch may be the oldest at a worker, or none."""
        workers = self.scheduler.workers
        held = workers.held.get(worker)
        batch = held[0] if held else None
        pool = workers.pool_of.get(worker)
        if pool is None or batch is None:
            self._deadlines.stops(worker)
        elif self._deadlines.limited(pool):
            rows = workers.flights[batch].rows
            self._deadlines.runs(worker, pool, batch, rows, self._timer())

    # -- messages in ---------------------------------------------------------------------------

    def receive(self, message: BackendMessage) -> None:
        """Apply what a backend says; once all has failed, nothing."""
        if self.error is not None:
            return
        match message:
            case WorkerIsReady():
                self._apply(WorkerReady(message.worker, message.pool))
            case WorkerIsLost():
                self._worker_lost(message)
            case TakeBackAnswer():
                answer = BatchTakenBack if message.taken else BatchStarted
                self._apply(answer(message.batch, message.worker))
            case WorkerHasRetired():
                self._backend.discard(message.worker)
            case BatchReply():
                self._weigh(message)
                report = self._stored(message)
                self._apply(BatchReported(message.batch, message.worker, report))
            case WorkerIsAt():
                self._seen(message)

    def _weigh(self, message: BatchReply) -> None:
        pool = self.scheduler.workers.pool_of.get(message.worker)
        most = None if pool is None else self.plan.pools[pool].recycle_above_mb
        if isinstance(message.reply, RowsReply) and message.reply.resident_mb > (most or math.inf):
            self._apply(WorkerWorn(message.worker))

    def _worker_lost(self, lost: WorkerIsLost) -> None:
        """Each batch that a dead worker held says so: the first counts."""
        if lost.worker in self._lost or (
            lost.idle and self.scheduler.workers.held.get(lost.worker)
        ):
            return
        self._lost.add(lost.worker)
        self._backend.discard(lost.worker)
        self._apply(WorkerLost(lost.worker, lost.pool, lost.type, lost.message, lost.charge))

    def _stored(self, message: BatchReply) -> Report:
        """Put a reply's values into the store, and leave their slots in the report."""
        reply = message.reply
        if not isinstance(reply, RowsReply):
            return reply
        flight = self.scheduler.workers.flights.get(message.batch)
        if flight is not None:
            self._wants_large[flight.call] = reply.large_bytes > 0
            self.busy_s[flight.call] += reply.busy_s
        try:
            self._require_stored(reply, message.large)
            kept = [self._kept(output, message.large) for output in reply.outputs]
        except ObjectStoreFull as error:
            said = f"the {reply.large_bytes} bytes that it returned could not be stored: {error}"
            return AttemptFailed(type(error).__name__, said)
        outputs = tuple(
            OutputReport(self.blocks.store(chunks), output.slots, output.shapes, output.mask)
            for output, chunks in zip(reply.outputs, kept, strict=True)
        )
        return RowsReport(reply.rows, outputs, reply.failures, reply.skipped)

    def _require_stored(self, reply: RowsReply, large: Sequence[Any]) -> None:
        used = {
            chunk.large_return
            for output in reply.outputs
            for chunk in output.chunks
            if chunk.data is None
        }
        if used and (problem := self._backend.unstored([large[i] for i in sorted(used)])):
            raise ObjectStoreFull(problem)

    def _kept(self, output: ReturnedOutput, large: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(chunk.n, self._chunk_data(chunk, large)) for chunk in output.chunks]

    def _chunk_data(self, chunk: ReturnedChunk, large: Sequence[Any]) -> Any:
        if chunk.data is None:
            return ChunkAddress(large[chunk.large_return], chunk.position)
        if isinstance(chunk.data, bytes):
            return chunk.data
        return ChunkAddress(self._backend.keep(chunk.data), 0)

    # -- instructions out --------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            self._obey(self.scheduler.handle(event))
            if isinstance(event, BatchReported | BatchTakenBack | WorkerLost | DeadlinePassed):
                self._time(event.worker)

    def _obey(self, instructions: list[Instruction]) -> None:
        released: dict[int, list[int]] = {}
        # Values are addressed before they are let go: releases come last.
        for instruction in instructions:
            match instruction:
                case DispatchBatch():
                    self._dispatch(instruction)
                case ParentCompleted():
                    self._deliver(instruction)
                    released.setdefault(instruction.microbatch, []).append(instruction.row)
                case StartWorker():
                    self._backend.start_worker(instruction.pool)
                case EndWorker():
                    self._lost.add(instruction.worker)
                    self._backend.discard(instruction.worker)
                case RetireWorker():
                    self._lost.add(instruction.worker)
                    self._backend.retire(instruction.worker)
                case TakeBack():
                    self._backend.take_back(instruction.worker, instruction.batch)
                case TellBars():
                    self._backend.tell_bars(instruction.worker, instruction.bars)
                case ForgetBar():
                    self._backend.forget_bar(instruction.worker, instruction.bar)
                case StopRun():
                    self._stop(instruction)
                case _:
                    pass
        for instruction in instructions:
            match instruction:
                case ReleaseValues():
                    self.blocks.release(instruction.slot, instruction.n)
                case MicrobatchClosed():
                    self._owners.pop(instruction.microbatch, None)
                case _:
                    pass
        self._events.extend(RowsReleased(number, tuple(rows)) for number, rows in released.items())

    def _dispatch(self, batch: DispatchBatch) -> None:
        inputs, chunks = self.blocks.address(batch.inputs)
        large = min(batch.rows, MOST_LARGE_RETURNS) if self._wants_large[batch.call] else 0
        message = BatchMessage(
            batch.batch,
            batch.call,
            batch.rows,
            inputs,
            chunks,
            batch.cuts,
            large,
            batch.bars,
            batch.oldest,
        )
        self._backend.send(batch.worker, batch.batch, message)
        self._time(batch.worker)

    def _deliver(self, completed: ParentCompleted) -> None:
        owner = self._owners.get(completed.microbatch)
        if owner is None:
            return
        payload = None
        if completed.outcome is ParentOutcome.COMPLETED:
            outputs, chunks = self.blocks.address(completed.outputs)
            payload = Payload(outputs, chunks, self.plan.single_output)
        parent = Parent(
            index=completed.row,
            row=owner.rows[completed.row],
            key=owner.keys[completed.row],
            outcome=completed.outcome,
            cause=completed.cause,
            gaps=completed.gaps,
            children=completed.children,
            attempts=completed.attempts,
            started=owner.started,
            finished=self._clock(),
            payload=payload,
            _fetch=self._backend.fetch,
        )
        if not self._tell(completed.microbatch, owner, parent):
            self._owners.pop(completed.microbatch, None)
            self._events.append(MicrobatchAbandoned(completed.microbatch))

    def _tell(self, number: int, owner: _Owner, said: Parent | BaseException) -> bool:
        """Whether the owner took it. One that raises must not end the runs of others."""
        try:
            owner.on_parent(said)
        except Exception:
            logger.exception("on_parent of microbatch %d raised; it is abandoned", number)
            return False
        return True

    def _stop(self, stop: StopRun) -> None:
        self.fail(
            StageStartError(
                f"stage {stop.stage}: its workers died before their first batch, several in a "
                f"row; the last one said: {stop.message}"
            )
        )
