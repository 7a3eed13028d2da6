"""The pure Scheduler alone: events in, instructions out, and stages that answer at once."""

from __future__ import annotations

from collections import deque
from typing import Any

from rayorch_prefect import F, program, stage
from rayorch_prefect.model.events import (
    BatchReported,
    DispatchBatch,
    Event,
    Instruction,
    ParentCompleted,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    WorkerReady,
)
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import OutputReport, RowFailure, RowsReport
from rayorch_prefect.scheduler.core import Scheduler


class Absent:
    """A stage that is never called."""

    def __call__(self, *columns: Any) -> Any:
        raise NotImplementedError


_read = stage(Absent, replicas=4, batch_size=64)()
_check = stage(Absent, replicas=4, batch_size=64)()
_assemble = stage(Absent, replicas=4, batch_size=16)()


@program(version="1")
def pages(source: Any) -> Any:
    """Each source is the list of its pages."""
    return _assemble(F.reduce(_read(F.expand(source, domain="page"))))


@program(version="1")
def forgiven(source: Any) -> Any:
    """The same with failures that are left out."""
    checked = _check(_read(F.expand(source, domain="page")))
    return _assemble(F.reduce(checked, on_failure="skip"))


POISON = RowFailure(Kind.GROUP_FAILURE, "Poison", "one page spoils the document")
BLOT = RowFailure(Kind.RECORD_FAILURE, "Blot", "one page cannot be read")


class Instant:
    """Workers that answer each batch at once. `failure` is what row 0 of every `each`-th batch of
    the first Call comes to."""

    def __init__(
        self, plan: Any, counts: list[int], failure: RowFailure | None = None, each: int = 3
    ) -> None:
        self.scheduler = Scheduler(plan)
        self._failure, self._each = failure, each
        self._events: deque[Event] = deque()
        self._workers, self._slot, self._batches = 0, sum(counts), 0
        self.ended = 0
        self._follow(self.scheduler.start())
        source = OutputReport(0, sum(counts), tuple(counts))
        self._events.append(SourceAdmitted(0, len(counts), source))

    def run(self) -> int:
        """Parents that ended."""
        while self._events:
            self._follow(self.scheduler.handle(self._events.popleft()))
        assert not self.scheduler.counts.contract_errors, "these workers answer as they should"
        return self.ended

    def _follow(self, told: list[Instruction]) -> None:
        for one in told:
            match one:
                case StartWorker(pool):
                    self._workers += 1
                    self._events.append(WorkerReady(self._workers, pool))
                case DispatchBatch():
                    self._events.append(BatchReported(one.batch, one.worker, self._report(one)))
                case ParentCompleted():
                    self.ended += 1
                    self._events.append(RowsReleased(0, (one.row,)))
                case _:
                    pass

    def _report(self, sent: DispatchBatch) -> RowsReport:
        first, failures = self._slot, {}
        self._batches += sent.call == 0
        if self._failure is not None and sent.call == 0 and self._batches % self._each == 0:
            failures[0] = self._failure
        self._slot += sent.rows
        return RowsReport(sent.rows, (OutputReport(first, sent.rows),), failures)
