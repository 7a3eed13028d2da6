"""The Scheduler's cost grows with the Grains, also for one parent with very many children.

Cost is counted in bytecode instructions, which no noisy neighbour changes.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

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
from rayorch_prefect.model.reports import OutputReport, RowFailure, RowsReport
from rayorch_prefect.program import F, Plan, program
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.values import Values
from tests.scheduler.scenes import ENCRYPTED, named

SMALL, LARGE = 200, 800


def read_pages(source: Any) -> Any:
    text = named("Read", replicas=3)(F.expand(source, domain="page"))
    return F.reduce(named("Check", batch_size=4, replicas=2)(text), on_failure="skip")


def read_again(source: Any) -> Any:
    again = F.expand(read_pages(source), domain="again")
    return F.reduce(named("More", batch_size=4)(again))


def masked(source: Any) -> Any:
    """Only some of the pages are read, and what is left is expanded once more."""
    page = F.expand(source, domain="page")
    text = named("Read", batch_size=4)(F.filter(page, named("Mask")(page)))
    return F.reduce(named("More", batch_size=4)(F.expand(F.reduce(text), domain="again")))


class _Run:
    """All batches succeed, but for one row in each `fails` batches of Check."""

    def __init__(self, plan: Plan, children: list[int], fails: int) -> None:
        self._plan = plan
        self._scheduler = Scheduler(plan)
        self._events: deque[Event] = deque()
        self._fails = fails
        self._workers = 0
        self._slot = sum(children)
        self.ended = 0
        self._follow(self._scheduler.start())
        source = OutputReport(0, sum(children), tuple(children))
        self._events.append(SourceAdmitted(0, len(children), source))

    def run(self) -> None:
        while self._events:
            self._follow(self._scheduler.handle(self._events.popleft()))

    def _follow(self, told: list[Instruction]) -> None:
        for one in told:
            match one:
                case StartWorker(pool):
                    self._workers += 1
                    self._events.append(WorkerReady(self._workers, pool))
                case DispatchBatch():
                    self._events.append(BatchReported(one.batch, one.worker, self._report(one)))
                case ParentCompleted():
                    self.ended += one.outcome.value == "COMPLETED"
                    self._events.append(RowsReleased(one.microbatch, (one.row,)))
                case _:
                    pass

    def _report(self, order: DispatchBatch) -> RowsReport:
        call = self._plan.calls[order.call]
        mask = bytes(row % 2 for row in range(order.rows)) if call.masks[0] else None
        failures: dict[int, RowFailure] = {}
        if self._fails and call.stage == "Check" and order.batch % self._fails == 0:
            failures[0] = ENCRYPTED
        self._slot += order.rows
        output = OutputReport(self._slot - order.rows, order.rows, None, mask)
        return RowsReport(order.rows, (output,), failures)


def instructions(work: Callable[[], None]) -> int:
    """How many bytecode instructions `work` takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def growth(declared: Callable[[Any], object], fails: int, parents: int) -> float:
    """How much more LARGE pages cost than SMALL ones."""
    plan = program(declared).plan
    costs: list[int] = []
    for pages in (SMALL, LARGE):
        run = _Run(plan, [pages // parents] * parents, fails)
        costs.append(instructions(run.run))
        assert run.ended == parents
    return costs[1] / costs[0]


@pytest.mark.parametrize("parents", [1, 20])
@pytest.mark.parametrize(
    ("declared", "fails"),
    [(read_pages, 0), (read_pages, 5), (read_again, 0), (read_again, 5), (masked, 0)],
)
def test_four_times_the_pages_cost_about_four_times_as_much(
    declared: Callable[[Any], object], fails: int, parents: int
) -> None:
    assert growth(declared, fails, parents) < LARGE / SMALL * 1.3


def test_work_that_grows_with_the_square_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Values, "members", Values.find_members)
    assert growth(masked, 0, 1) > LARGE / SMALL * 1.3
