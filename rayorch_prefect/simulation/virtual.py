"""The real Scheduler under a virtual clock, with virtual workers.

Everything that happens stands in one agenda by its time. The driver does one thing at a time: an
event that comes while it is busy waits, and what it is answered by leaves when the driver is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from rayorch_prefect.errors import InternalError
from rayorch_prefect.model.events import (
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    DispatchBatch,
    Event,
    ForgetBar,
    Instruction,
    LingerCall,
    LingerPassed,
    MicrobatchClosed,
    ParentCompleted,
    ReleaseValues,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    TakeBack,
    TellBars,
    WorkerReady,
)
from rayorch_prefect.model.outcomes import Kind, ParentOutcome
from rayorch_prefect.model.reports import OutputReport, RowsReport
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.simulation.batch import Batch, Bench, Segment
from rayorch_prefect.simulation.chain import Chain, Level
from rayorch_prefect.simulation.conditions import Conditions
from rayorch_prefect.simulation.declared import plan_of
from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.prices import Prices
from rayorch_prefect.simulation.record import Record
from rayorch_prefect.simulation.workers import VirtualWorker


class VirtualRun:
    """One run of a chain over a load. `seed` is that of the rows' costs."""

    def __init__(
        self, chain: Chain, load: Load, conditions: Conditions, seed: int = 0, start: float = 0.0
    ) -> None:
        self._chain = chain
        self._load = load
        self._costs = conditions
        self._plan = plan_of(chain)
        held, policy = conditions.batches_at_worker, conditions.policy
        self._scheduler = Scheduler(self._plan, held, policy=policy)
        spoiled = _poisoned_stage(chain, load)
        # A pool each, in order: a worker's pool is its stage's place.
        self._benches = [
            Bench(stage, Prices(stage, load, seed), load.poison if stage.name == spoiled else {})
            for stage in chain.stages
        ]
        self._size = load.microbatch or len(load.counts)
        self._first: list[int] = []  # each slice's first document
        self._agenda: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._entries = 0
        self._events: deque[Event] = deque()
        self._workers: list[VirtualWorker] = []
        self._slot = 0
        self._free = start
        self.record = Record(chain.stages)

    def run(self) -> Record:
        """Everything that happened, until nothing is left to happen."""
        now = self._free
        self._obey(self._scheduler.start(), now)
        slices = -(-len(self._load.counts) // self._size)
        for _ in range(min(self._load.active, slices)):
            self._at(now, self._admit, None)
        while self._agenda:
            now, _, what, about = heappop(self._agenda)
            what(now, about)
        if len(self.record.ended) != len(self._load.counts):
            raise InternalError("simulation: not every document has ended")
        return self.record

    def _at(self, when: float, what: Callable[[float, Any], None], about: Any) -> None:
        self._entries += 1
        heappush(self._agenda, (when, self._entries, what, about))

    # -- the driver ------------------------------------------------------------------------------

    def _admit(self, now: float, _: Any) -> None:
        """One slice more, if any is left."""
        admitted = len(self._first) * self._size
        counts = self._load.counts[admitted : admitted + self._size]
        if not counts:
            return
        self._first.append(admitted)
        shapes: tuple[int, ...] | None = None
        if self._chain.expands and not self._chain.before:
            shapes = tuple(map(self._children, counts))
        source = self._output(len(counts), shapes)
        self._driver(now, SourceAdmitted(len(self._first) - 1, len(counts), source))

    def _output(self, rows: int, shapes: tuple[int, ...] | None) -> OutputReport:
        """New values."""
        first, slots = self._slot, rows if shapes is None else sum(shapes)
        self._slot += slots
        return OutputReport(first, slots, shapes)

    def _children(self, pages: int) -> int:
        """Of a document, in the level below it."""
        return -(-pages // self._chain.step) if self._chain.ranges else pages

    def _driver(self, now: float, event: Event) -> None:
        now = max(now, self._free)
        if isinstance(event, BatchReported) and isinstance(event.report, RowsReport):
            now += self._costs.driver_batch_s + self._costs.driver_row_s * event.report.rows
        self._free = now
        self._events.append(event)
        while self._events:
            self._obey(self._scheduler.handle(self._events.popleft()), self._free)

    def _obey(self, told: list[Instruction], now: float) -> None:
        for one in told:
            match one:
                case ReleaseValues():
                    pass
                case DispatchBatch():
                    now = self._free = now + self._costs.driver_send_s
                    batch = Batch(one, self._segments(one))
                    self._at(now + self._costs.send_s, self._arrive, batch)
                case ParentCompleted():
                    self._ended(one, now)
                case TakeBack() | TellBars() | ForgetBar():
                    self._at(now + self._costs.control_s, self._control, one)
                case StartWorker():
                    self._at(now, self._driver, self._started(one.pool))
                case LingerCall():
                    wait = self._benches[one.call].stage.linger_s
                    self._at(now + wait, self._driver, LingerPassed(one.call, one.turn))
                case MicrobatchClosed():
                    self._at(now, self._admit, None)
                case _:
                    raise InternalError(f"simulation: there is no answer to {one}")

    def _ended(self, parent: ParentCompleted, now: float) -> None:
        if parent.cause is not None and parent.cause.kind is Kind.CONTRACT_ERROR:
            raise InternalError(f"simulation: {parent.cause}")
        document = self._first[parent.microbatch] + parent.row
        self.record.parent(document, now, parent.outcome is ParentOutcome.COMPLETED)
        self._events.append(RowsReleased(parent.microbatch, (parent.row,)))

    def _started(self, pool: int) -> WorkerReady:
        lane = sum(worker.pool == pool for worker in self._workers)
        self._workers.append(VirtualWorker(pool, lane))
        return WorkerReady(len(self._workers) - 1, pool)

    # -- whose rows ------------------------------------------------------------------------------

    def _segments(self, sent: DispatchBatch) -> list[Segment]:
        level = self._benches[sent.call].stage.level
        find = {Level.PAGE: self._pages, Level.RANGE: self._ranges, Level.DOCUMENT: self._documents}
        found: list[Segment] = []
        for number, first, end in sent.ranges:
            find[level](found, sent, number, first, end)
        return found

    def _documents(
        self, found: list[Segment], sent: DispatchBatch, number: int, first: int, end: int
    ) -> None:
        for document in range(self._first[number] + first, self._first[number] + end):
            pages = self._load.counts[document]
            found.append(Segment(document, 0, 1, pages, len(found), None))

    def _ranges(
        self, found: list[Segment], sent: DispatchBatch, number: int, first: int, end: int
    ) -> None:
        mb, step = self._scheduler.runs[number].mb, self._chain.step
        for entity in range(first, end):
            row = mb.lineage.parent[_BELOW][entity]
            document, start = self._first[number] + row, mb.lineage.ordinal(_BELOW, entity) * step
            pages = min(step, self._load.counts[document] - start)
            found.append(Segment(document, start, 1, pages, len(found), (number, sent.call, row)))

    def _pages(
        self, found: list[Segment], sent: DispatchBatch, number: int, first: int, end: int
    ) -> None:
        domain = self._plan.calls[sent.call].domain
        mb = self._scheduler.runs[number].mb
        row = found[-1].row + found[-1].n if found else 0
        for group, start, stop in mb.groups(domain, first, end):
            parent, page = group, mb.lineage.ordinal(domain, start)
            if self._chain.ranges:
                page += mb.lineage.ordinal(_BELOW, group) * self._chain.step
                parent = mb.lineage.parent[_BELOW][group]
            document, n = self._first[number] + parent, stop - start
            found.append(Segment(document, page, n, 0, row, (number, sent.call, group)))
            row += n

    # -- workers ---------------------------------------------------------------------------------

    def _arrive(self, now: float, batch: Batch) -> None:
        worker = self._workers[batch.sent.worker]
        worker.waiting.append(batch)
        self._begin(worker, now)

    def _begin(self, worker: VirtualWorker, now: float) -> None:
        batch = worker.begin(self._benches[worker.pool], now, self._costs.start_s)
        if batch is not None:
            self._ends(worker, batch)

    def _ends(self, worker: VirtualWorker, batch: Batch) -> None:
        batch.version += 1
        self._at(batch.end, self._end, (worker, batch, batch.version))

    def _end(self, now: float, about: tuple[VirtualWorker, Batch, int]) -> None:
        worker, batch, version = about
        if version != batch.version:
            return
        worker.end(now)
        self.record.batch(worker.pool, worker.lane, batch)
        report = self._report(batch)
        event = BatchReported(batch.sent.batch, batch.sent.worker, report)
        self._at(now + self._costs.report_s, self._driver, event)
        self._begin(worker, now)

    def _report(self, batch: Batch) -> RowsReport:
        sent = batch.sent
        shapes: tuple[int, ...] | None = None
        if self._plan.calls[sent.call].list_depths[0]:
            ranges = self._benches[sent.call].stage.level is Level.RANGE
            shapes = tuple(
                segment.pages if ranges else self._children(segment.pages)
                for segment in batch.segments
            )
        output = self._output(sent.rows, shapes)
        return RowsReport(sent.rows, (output,), batch.failures, tuple(batch.skipped))

    def _control(self, now: float, one: TakeBack | TellBars | ForgetBar) -> None:
        worker = self._workers[one.worker]
        match one:
            case TakeBack():
                answer = BatchTakenBack if worker.take_back(one.batch) else BatchStarted
                event = answer(one.batch, one.worker)
                self._at(now + self._costs.control_s, self._driver, event)
            case TellBars():
                batch = worker.tell(one.bars, self._benches[worker.pool], now)
                if batch is not None:
                    self._ends(worker, batch)
            case ForgetBar():
                worker.bars.pop(one.bar, None)


# The Domain right below the documents.
_BELOW = 1


def _poisoned_stage(chain: Chain, load: Load) -> str:
    on_pages = [stage.name for stage in chain.stages if stage.level is Level.PAGE or stage.whole]
    return load.poisons or next(iter(on_pages), "")
