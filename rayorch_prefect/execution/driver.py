"""The driver loop's body: backend messages become events, instructions become calls.

Knows neither Ray nor threads: `Engine` feeds it from one thread, `run_local` in place.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rayorch_prefect.errors import ObjectStoreFull, RayorchError
from rayorch_prefect.execution.arrivals import Arrivals
from rayorch_prefect.execution.backend import (
    Backend,
    BackendMessage,
    BatchReply,
    ChunksCame,
    LinesCame,
    TakeBackAnswer,
    WorkerHasRetired,
    WorkerIsAt,
    WorkerIsLost,
    WorkerIsReady,
)
from rayorch_prefect.execution.batch import of_lost
from rayorch_prefect.execution.blocks import Blocks, Recipe
from rayorch_prefect.execution.chronicle import Chronicle
from rayorch_prefect.execution.clocks import Clocks
from rayorch_prefect.execution.codec import EncodedChunk
from rayorch_prefect.execution.losses import LOST_BLOCK, LostValues
from rayorch_prefect.execution.messages import (
    MOST_LARGE_RETURNS,
    BatchMessage,
    ChunkAddress,
    InputsLost,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)
from rayorch_prefect.execution.owner import Owner, named
from rayorch_prefect.execution.paces import Paces
from rayorch_prefect.execution.parent import OnParent, Payload
from rayorch_prefect.execution.remaking import Remaker
from rayorch_prefect.execution.rows import DescribedRows, SourceRows, stored_rows
from rayorch_prefect.execution.stage_costs import StageCosts
from rayorch_prefect.execution.stage_lines import OnLine, StageLines, log_line
from rayorch_prefect.execution.standstill import standing
from rayorch_prefect.execution.stops import error_of
from rayorch_prefect.model.events import (
    Bar,
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    DeadlinePassed,
    DispatchBatch,
    EndWorker,
    Event,
    ForgetBar,
    Instruction,
    LingerCall,
    MicrobatchAbandoned,
    MicrobatchClosed,
    ParentCompleted,
    PauseCall,
    ReleaseValues,
    ResumeCall,
    RetireWorker,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    StopRun,
    TakeBack,
    TellBars,
    WorkerLost,
    WorkerReady,
    WorkerRemakes,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import Failure, Kind, ParentOutcome
from rayorch_prefect.model.reports import AttemptFailed, OutputReport, Report, RowsReport
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.replay.recorder import Recorder
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.credits import Bound
from rayorch_prefect.scheduler.policies import FIFO, Policy


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
        bound: Bound = Bound(),  # noqa: B008
        policy: str | Policy = FIFO,
        recorder: Recorder | None = None,
        on_line: OnLine = log_line,
        shares_calls: bool = False,
    ) -> None:
        self.plan = plan
        self._paces = Paces(plan, batches_at_worker, shares_calls)
        self.scheduler = Scheduler(plan, batches_at_worker, bound=bound, policy=policy)
        self.chronicle = Chronicle(self.scheduler, clock, recorder)
        self.lines = StageLines(plan, self.scheduler, on_line, timer)
        self.blocks = Blocks()
        self.costs = [StageCosts.of(call) for call in plan.calls]
        self.error: RayorchError | None = None
        self._backend = backend
        self._clock = clock
        self._timer = timer
        self._owners: dict[int, Owner] = {}
        self._next_microbatch = 0
        self._wants_large = [True] * len(plan.calls)
        self._lost: set[int] = set()
        self._events: deque[Event] = deque()
        self.remaker = Remaker(plan, self.blocks, self)
        self._recipes: dict[int, Recipe] = {}
        self._arrivals = Arrivals(self.blocks, self)
        self._parked: set[int] = set()
        self._clocks = Clocks(plan, self.scheduler.workers, self._parked, self.remaker.runs_at)
        # Rows handed over whose release the scheduler has not been told yet, by microbatch.
        self._handed: dict[int, list[int]] = {}
        self._draining = False

    def start(self) -> None:
        """Ask for all workers."""
        self._obey(self.chronicle.start())

    @property
    def all_ready(self) -> bool:
        """Whether no worker is still being started."""
        return not any(self.scheduler.workers.starting)

    @property
    def active(self) -> int:
        """Microbatches that have not ended."""
        return len(self._owners)

    def standing(self) -> str:
        """What is at which worker, for how long, and which workers are not ready."""
        now = self._timer()
        keys = {number: owner.keys for number, owner in self._owners.items()}
        ages = {batch: now - recipe.since for batch, recipe in self._recipes.items()}
        return standing(self.scheduler, keys, ages)

    # -- runs --------------------------------------------------------------------------------

    def submit(
        self,
        rows: Sequence[Any],
        keys: Sequence[str],
        described: DescribedRows,
        on_parent: OnParent,
        on_line: OnLine | None = None,
    ) -> int:
        """Admit a microbatch; returns its number. Parents come through `on_parent`."""
        number = self._next_microbatch
        self._next_microbatch += 1
        owner = Owner(rows, keys, on_parent, self._clock())
        if self.error is not None:
            owner.tell(number, self.error)
            return number
        self._owners[number] = owner
        stored, refused = stored_rows(described, self.source_data)
        first = self.blocks.store([(1, data) for data in stored], SourceRows(self.plan, rows))
        source = OutputReport(first, len(described.chunks), described.shapes, described.mask)
        invalid = (*described.invalid, *refused.items())
        self.chronicle.admits(number, keys)
        self.lines.admits(number, keys, on_line)
        self._apply(SourceAdmitted(number, len(rows), source, invalid))
        return number

    def source_data(self, chunk: EncodedChunk) -> Any:
        """A source row's value as a block's data."""
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
            owner.tell(number, error)

    # -- deadlines -----------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float:
        """When to call `tick`, in the timer's seconds; infinity if there is nothing to wait for."""
        if self.error is not None:
            return math.inf
        return min(self._clocks.next, self.chronicle.due, self._paces.next)

    def tick(self) -> None:
        """Deal with the deadlines that have come."""
        self.chronicle.tick(self._timer())
        events, suspects = self._clocks.due(self._timer())
        for event in events:
            self._apply(event)
        for running in suspects:
            self._backend.look(running.worker, running.batch)
        for pool in self._paces.late(self._timer(), self._recipes.values()):
            self._go_alone(pool)
            for worker in self.workers_of(pool):
                self._backend.hand_over(worker)

    def _go_alone(self, pool: int) -> None:
        """Batches of a pool share no calls for a while."""
        for event in self._paces.alone(pool):
            self._apply(event)

    def _seen(self, seen: WorkerIsAt) -> None:
        passed = self._clocks.seen(seen, self._timer())
        if passed is not None:
            self._apply(passed)

    # -- messages in ---------------------------------------------------------------------------

    def receive(self, message: BackendMessage) -> None:
        """Apply what a backend says; once all has failed, nothing but what stages logged."""
        if isinstance(message, LinesCame):
            self.lines.came(message)
        if self.error is not None:
            return
        match message:
            case WorkerIsReady():
                self._apply(WorkerReady(message.worker, message.pool))
                self.remaker.worker_ready()
            case WorkerIsLost():
                self._worker_lost(message)
            case TakeBackAnswer():
                if message.taken:
                    self._forget_flight(message.batch)
                answer = BatchTakenBack if message.taken else BatchStarted
                self._apply(answer(message.batch, message.worker))
            case WorkerHasRetired():
                self._backend.discard(message.worker)
            case BatchReply() if message.batch < 0:
                self.remaker.replied(message.batch, message.reply, message.large)
                self._clocks.watch(message.worker, self._timer())
            case BatchReply(reply=InputsLost() as lost) if message.batch in self._recipes:
                recipe = self._recipes[message.batch]
                self.remaker.forget_data(recipe.blocks[index] for index in lost.chunks)
                self._send(message.worker, message.batch, recipe)
            case BatchReply():
                self._weigh(message)
                report = self._stored(message)
                self._apply(BatchReported(message.batch, message.worker, report))
            case ChunksCame():
                for event in self._arrivals.told(message, self._recipes.get(message.batch)):
                    self._apply(event)
            case WorkerIsAt():
                self._seen(message)

    def _weigh(self, message: BatchReply) -> None:
        pool, reply = self.scheduler.workers.pool_of.get(message.worker), message.reply
        if pool is None or not isinstance(reply, RowsReply):
            return
        if reply.unfit or reply.resident_mb > (self.plan.pools[pool].recycle_above_mb or math.inf):
            self._apply(WorkerWorn(message.worker))

    def _worker_lost(self, lost: WorkerIsLost) -> None:
        """Each batch that a dead worker held says so: the first counts."""
        if lost.worker in self._lost:
            self.remaker.worker_lost(lost.worker)
            return
        held = self.scheduler.workers.held.get(lost.worker, ())
        if lost.idle and not self._parked.issuperset(held):
            return
        self._go_alone(lost.pool)
        self._apply(lost.event())
        self._discard(lost.worker)

    def _discard(self, worker: int) -> None:
        self._lost.add(worker)
        self._backend.discard(worker)
        flights = self.scheduler.workers.flights
        for batch in [batch for batch in self._recipes if batch not in flights]:
            self._forget_flight(batch)
        self.remaker.worker_lost(worker)

    def _forget_flight(self, batch: int) -> Recipe | None:
        self._parked.discard(batch)
        self._clocks.forget(batch)
        return self._recipes.pop(batch, None)

    def _stored(self, message: BatchReply) -> Report:
        """Put a reply's values into the store, and leave their slots in the report."""
        reply = message.reply
        recipe = self._forget_flight(message.batch)
        if isinstance(reply, InputsLost):
            return AttemptFailed(LOST_BLOCK, "what the batch reads was lost")
        if not isinstance(reply, RowsReply):
            return reply
        if recipe is not None:
            self._wants_large[recipe.call] = reply.large_bytes > 0
            self.costs[recipe.call].ran(reply)
            recipe.ran(reply)
        try:
            self._require_stored(reply, message.large)
            kept = [self._kept(output, message.large) for output in reply.outputs]
        except ObjectStoreFull as error:
            said = f"the {reply.large_bytes} bytes that it returned could not be stored: {error}"
            return AttemptFailed(type(error).__name__, said)
        outputs = tuple(
            output.report(self.blocks.store(chunks, recipe, place))
            for place, (output, chunks) in enumerate(zip(reply.outputs, kept, strict=True))
        )
        if recipe is not None:
            size = reply.large_bytes + sum(size for one in outputs for _, size, _ in one.sizes)
            self._events += self._paces.ran(recipe.call, reply.busy_s, size)
        return RowsReport(reply.rows, outputs, reply.failures, reply.skipped)

    def _require_stored(self, reply: RowsReply, large: Sequence[Any]) -> None:
        used = reply.large_returns
        if used and (problem := self._backend.unstored([large[i] for i in used])):
            raise ObjectStoreFull(problem)

    def _kept(self, output: ReturnedOutput, large: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(chunk.n, self.chunk_data(chunk, large)) for chunk in output.chunks]

    def chunk_data(self, chunk: ReturnedChunk, large: Sequence[Any]) -> Any:
        """A returned chunk as a block's data."""
        if chunk.data is None:
            return ChunkAddress(large[chunk.large_return], chunk.position)
        return chunk.data

    # -- instructions out --------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        """Handle events until there are none; those that come up meanwhile stand in line."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._events or self._handed:
                self._events.extend(
                    RowsReleased(number, tuple(rows)) for number, rows in self._handed.items()
                )
                self._handed.clear()
                event = self._events.popleft()
                self._obey(self.chronicle.handle(event))
                if isinstance(event, BatchReported | BatchTakenBack | WorkerLost | DeadlinePassed):
                    self._clocks.watch(event.worker, self._timer())
        finally:
            self._draining = False

    def _obey(self, instructions: list[Instruction]) -> None:
        # Values are addressed before they are let go: releases come last.
        for instruction in instructions:
            match instruction:
                case DispatchBatch():
                    self._dispatch(instruction)
                case ParentCompleted():
                    self._deliver(instruction)
                case StartWorker():
                    self._backend.start_worker(instruction.pool)
                case EndWorker():
                    self._discard(instruction.worker)
                case RetireWorker():
                    self._lost.add(instruction.worker)
                    self._backend.retire(instruction.worker)
                case TakeBack():
                    self._backend.take_back(instruction.worker, instruction.batch)
                case TellBars():
                    self._backend.tell_bars(instruction.worker, instruction.bars)
                case ForgetBar():
                    self._backend.forget_bar(instruction.worker, instruction.bar)
                case LingerCall():
                    self._clocks.linger(instruction, self._timer())
                case PauseCall():
                    self._clocks.pauses.pause(instruction, self._timer())
                case ResumeCall():
                    self._clocks.pauses.resume(instruction.call, self._timer())
                case StopRun():
                    self.fail(error_of(instruction))
                case _:
                    pass
        for instruction in instructions:
            match instruction:
                case ReleaseValues():
                    self.blocks.release(instruction.slot, instruction.n)
                case MicrobatchClosed():
                    self._owners.pop(instruction.microbatch, None)
                    self.lines.ended(instruction.microbatch)
                case _:
                    pass

    def _dispatch(self, batch: DispatchBatch) -> None:
        inputs, blocks = self.blocks.address(batch.inputs)
        recipe = Recipe(batch.call, batch.rows, inputs, blocks, batch.cuts, self._timer())
        recipe.in_chunks = bool(self.plan.calls[batch.call].chunked)
        recipe.taken = batch.taken
        recipe.alone = batch.generation > 0  # if it ends its worker again, it is known by that
        self._recipes[batch.batch] = recipe
        self._send(batch.worker, batch.batch, recipe, batch.bars, batch.oldest)

    def _send(
        self, worker: int, batch: int, recipe: Recipe, bars: tuple[Bar, ...] = (), oldest: int = 0
    ) -> None:
        """Send a batch once all that it reads is there."""

        def then(problem: str | None) -> None:
            if self._recipes.get(batch) is not recipe:
                return  # its worker was lost meanwhile
            self._parked.discard(batch)
            self._clocks.watch(worker, self._timer())
            if problem is None:
                large = MOST_LARGE_RETURNS if self._wants_large[recipe.call] else 0
                message = recipe.message(batch, bars, oldest, large)
                together = self._paces.leaves(recipe, self._timer())
                self._backend.send(worker, batch, message, together)
            else:
                self._forget_flight(batch)
                failed = AttemptFailed(LOST_BLOCK, problem)
                self._apply(BatchReported(batch, worker, failed))

        self._parked.add(batch)
        self.remaker.need(recipe.blocks, then)

    def workers_of(self, pool: int) -> list[int]:
        """Workers of a pool that are there, least held first."""
        workers = self.scheduler.workers
        found = (worker for worker, of in workers.pool_of.items() if of == pool)
        return sorted(found, key=lambda worker: len(workers.held[worker]))

    def send_again(self, worker: int, batch: int, message: BatchMessage) -> None:
        """Send a batch that makes lost values again."""
        self._backend.send(worker, batch, message)
        self._events.append(WorkerRemakes(worker))

    def _deliver(self, completed: ParentCompleted) -> None:
        owner = self._owners.get(completed.microbatch)
        if owner is None:
            return
        if completed.outcome is not ParentOutcome.COMPLETED:
            self._hand_over(owner, completed, None, named(completed.cause, self._owners))
            return
        outputs, blocks = self.blocks.address(completed.outputs)

        def then(problem: str | None) -> None:
            if problem is None:
                payload = Payload(outputs, (), self.plan.single_output, blocks).renewed()
                self._hand_over(owner, completed, payload, None)
            else:
                root = self.plan.domains[0].name
                cause = Failure(Kind.ATTEMPTS_EXHAUSTED, LOST_BLOCK, problem, root, root)
                self._hand_over(owner, completed, None, cause)

        self.remaker.need(blocks, then)

    def _hand_over(
        self,
        owner: Owner,
        completed: ParentCompleted,
        payload: Payload | None,
        cause: Failure | None,
    ) -> None:
        parent = owner.parent(completed, payload, cause, self._clock(), self._backend.fetch)
        self._handed.setdefault(completed.microbatch, []).append(completed.row)
        if not owner.tell(completed.microbatch, parent):
            self._owners.pop(completed.microbatch, None)
            self._events.append(MicrobatchAbandoned(completed.microbatch))
        self._drain()

    def renew(
        self, payload: Payload, lost: LostValues, then: Callable[[Payload | None], None]
    ) -> None:
        """Have a parent's lost values made again: `then` gets its payload, None if it cannot be."""
        gone = of_lost(payload.chunks, lost)
        for index, (block, chunk) in enumerate(zip(payload.blocks, payload.chunks, strict=True)):
            # Released blocks have no data: the payload still has what is not lost.
            block.data = None if index in gone else chunk
        self.remaker.lost += len(gone)
        self.remaker.need(
            payload.blocks,
            lambda problem: then(None if problem else payload.renewed()),
        )
