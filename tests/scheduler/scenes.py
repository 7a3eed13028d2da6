"""A stage for hand-picked scenes: a Scheduler, and a few words to drive it by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rayorch_prefect.model.events import (
    BatchReported,
    DeadlinePassed,
    DispatchBatch,
    Event,
    Instruction,
    ParentCompleted,
    ReleaseValues,
    SourceAdmitted,
    StartWorker,
    WorkerLost,
    WorkerReady,
)
from rayorch_prefect.model.outcomes import Kind, Outcome
from rayorch_prefect.model.parts import Part
from rayorch_prefect.model.reports import AttemptFailed, OutputReport, RowFailure, RowsReport, Shape
from rayorch_prefect.program import F, program, stage
from rayorch_prefect.program.plan import CallOutputOp
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.items import total_slots
from tests.scheduler import invariants

ENCRYPTED = RowFailure(Kind.RECORD_FAILURE, "Encrypted", "needs a password")
SPOILED = RowFailure(Kind.GROUP_FAILURE, "Spoiled", "the whole group")
BOOM = RowFailure(None, "ValueError", "boom")


def named(name: str, **options: Any) -> Any:
    """A stage of this name; batch-wise unless told otherwise."""

    def act(*rows: object) -> object:
        raise AssertionError(f"{name} is only simulated, {rows}")

    async def act_later(*rows: object) -> object:
        return act(*rows)

    act.__name__ = act_later.__name__ = name
    if "concurrency" in options:
        return stage(act_later, **options)
    chosen: dict[str, Any] = {"rowwise": False, "batch_size": 8, **options}
    return stage(act, **chosen)


class Scene:
    """One Scheduler. All workers are ready at once unless `workers=False`; the other options are
    the Scheduler's own."""

    def __init__(
        self, declared: Callable[[Any], object], *, workers: bool = True, **options: Any
    ) -> None:
        self.plan = program(declared).plan
        self.scheduler = Scheduler(self.plan, **options)
        self.sent: list[DispatchBatch] = []
        self.parents: dict[tuple[int, int], ParentCompleted] = {}
        self.released: set[int] = set()
        self.told: list[Instruction] = []
        self.events: list[Event] = []
        self.log: list[tuple[Event, list[Instruction]]] = []
        self._slot = 0
        self._workers = 0
        self._microbatches = 0
        for one in self.scheduler.start():
            if isinstance(one, StartWorker) and workers:
                self.worker(one.pool)

    def tell(self, event: Event) -> list[Instruction]:
        """One event; what follows is kept in `sent`, `parents`, `released` and `told`."""
        self.events.append(event)
        self.told = self.scheduler.handle(event)
        self.log.append((event, self.told))
        invariants.check(self.scheduler)
        for one in self.told:
            match one:
                case DispatchBatch():
                    self.sent.append(one)
                case ParentCompleted():
                    self.parents[one.microbatch, one.row] = one
                case ReleaseValues(slot, n):
                    fresh = set(range(slot, slot + n))
                    assert not fresh & self.released
                    self.released |= fresh
                case _:
                    pass
        return self.told

    # -- events -------------------------------------------------------------------------------

    def worker(self, pool: int = 0) -> int:
        """A worker becomes ready; returns its number."""
        self._workers += 1
        self.tell(WorkerReady(self._workers, pool))
        return self._workers

    def admit(self, rows: int = 1, shapes: Sequence[Shape] | None = None) -> int:
        """A microbatch begins; `shapes` where the Program expands the source."""
        number = self._microbatches
        self._microbatches += 1
        self.tell(SourceAdmitted(number, rows, self._output(rows, shapes, None)))
        return number

    def take(self, stage: str | None = None) -> DispatchBatch:
        """The oldest batch (of a stage) that is at a worker."""
        for order in self.sent:
            if stage in (None, self.plan.calls[order.call].stage):
                self.sent.remove(order)
                return order
        raise AssertionError(f"no batch of {stage} is at a worker")

    def give(
        self,
        stage: str | None = None,
        *,
        shapes: Sequence[Shape] | None = None,
        masks: Sequence[bool] | None = None,
        failures: dict[int, RowFailure] | None = None,
    ) -> DispatchBatch:
        """The oldest batch (of a stage) is reported with values."""
        order = self.take(stage)
        self.tell(
            BatchReported(order.batch, order.worker, self.report(order, shapes, masks, failures))
        )
        return order

    def report(
        self,
        order: DispatchBatch,
        shapes: Sequence[Shape] | None = None,
        masks: Sequence[bool] | None = None,
        failures: dict[int, RowFailure] | None = None,
    ) -> RowsReport:
        """A report of a batch, with slots of its own."""
        call = self.plan.calls[order.call]
        outputs = tuple(
            self._output(order.rows, shapes if depth else None, masks if is_mask else None)
            for depth, is_mask in zip(call.list_depths, call.masks, strict=True)
        )
        return RowsReport(order.rows, outputs, failures or {})

    def fail(self, stage: str | None = None) -> DispatchBatch:
        """The oldest batch (of a stage) raises an exception."""
        order = self.take(stage)
        failed = AttemptFailed("ValueError", "boom")
        self.tell(BatchReported(order.batch, order.worker, failed))
        return order

    def lose(self, stage: str | None = None, *, charge: bool = True) -> DispatchBatch:
        """The worker of the oldest batch (of a stage) dies; another takes its place."""
        order = self.take(stage)
        pool = self.plan.calls[order.call].pool
        self.tell(WorkerLost(order.worker, pool, "WorkerDied", "out of memory", charge))
        self.worker(pool)
        return order

    def pass_deadline(self, stage: str | None = None, row: int | None = None) -> DispatchBatch:
        """The oldest batch (of a stage), or a row of it, takes too long; a new worker comes."""
        order = self.take(stage)
        self.tell(DeadlinePassed(order.batch, order.worker, row))
        self.worker(self.plan.calls[order.call].pool)
        return order

    def _output(
        self, rows: int, shapes: Sequence[Shape] | None, masks: Sequence[bool] | None
    ) -> OutputReport:
        first = self._slot
        slots = rows if shapes is None else sum(map(total_slots, shapes))
        self._slot += slots
        mask = None if masks is None else bytes(masks)
        return OutputReport(first, slots, None if shapes is None else tuple(shapes), mask)

    # -- questions ----------------------------------------------------------------------------

    def outcome(self, row: int = 0, microbatch: int = 0) -> str:
        """What became of a parent; empty while it has not ended."""
        told = self.parents.get((microbatch, row))
        return told.outcome.value if told else ""

    def output(self, row: int = 0, microbatch: int = 0) -> Part:
        """The part of a COMPLETED parent's only output."""
        ((part,),) = self.parents[microbatch, row].outputs
        return part

    def cause(self, row: int = 0, microbatch: int = 0) -> tuple[str, str, tuple[int, ...]]:
        """(stage, type, path) of a FAILED parent."""
        cause = self.parents[microbatch, row].cause
        assert cause is not None
        return cause.stage, cause.type, cause.path

    def outcomes(self, stage: str, microbatch: int = 0) -> list[str]:
        """Of the Items of a stage's first output."""
        for port in self.plan.ports:
            op = port.op
            if isinstance(op, CallOutputOp) and self.plan.calls[op.call].stage == stage:
                found = self.scheduler.runs[microbatch].mb.items.outcome[port.id]
                return [Outcome(one).name for one in found]
        raise AssertionError(f"no stage {stage}")

    def ranges(self, stage: str | None = None) -> list[tuple[tuple[int, int], ...]]:
        """The Entities of the batches that are at workers."""
        return [
            tuple((first, end) for _, first, end in order.ranges)
            for order in self.sent
            if stage in (None, self.plan.calls[order.call].stage)
        ]


def pages_read(on_failure: str = "fail", **options: Any) -> Any:
    """The source rows are lists of pages; Read reads each; the reduced list is the output."""

    def pages(source: Any) -> Any:
        read = named("Read", **options)(F.expand(source, domain="page"))
        return F.reduce(read, on_failure=on_failure)

    return pages
