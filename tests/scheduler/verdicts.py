"""Whether what the Scheduler says of values and parents is what the reference allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set as AbstractSet

from rayorch_prefect.model.events import DispatchBatch, ParentCompleted
from rayorch_prefect.model.outcomes import DEADLINE_EXCEEDED, Failure
from rayorch_prefect.program.plan import Call, Plan
from tests.scheduler.evaluator import Cause, Evaluator, Path, failed_type
from tests.scheduler.virtual_stages import VirtualStages, matches


class Verdicts:
    """Against the reference; `too_slow` are the Grains that a deadline was charged to."""

    def __init__(
        self,
        plan: Plan,
        expected: Evaluator,
        stages: VirtualStages,
        too_slow: AbstractSet[tuple[int, Path]],
    ) -> None:
        self._plan = plan
        self._expected = expected
        self._stages = stages
        self._too_slow = too_slow

    def check_inputs(self, call: Call, order: DispatchBatch, paths: list[Path]) -> None:
        assert len(order.inputs) == len(call.inputs)
        for port, parts in zip(call.inputs, order.inputs, strict=True):
            rows = [row for part in parts for row in self._stages.rows_of(part)]
            assert len(rows) == len(paths), f"{len(rows)} values for {len(paths)} rows"
            for row, path in zip(rows, paths, strict=True):
                options = self._expected.item(port, path)
                if ("O",) in options or (path[0], path[1]) in self._stages.broken:
                    continue
                if not options and self._came_in_chunks(call.domain):
                    continue  # a child of an expansion that is to fail
                fits = any(option[0] == "P" and matches(option[1], row) for option in options)
                assert fits, f"input {port} at {path}: {row} is not in {options}"

    def _came_in_chunks(self, domain: int) -> bool:
        """Whether Entities of a Domain may be there before it is sure that they ever are."""
        chunked = {one for call in self._plan.calls for one in call.chunked}
        above = self._plan.domains[domain].parent
        return domain in chunked or (above is not None and self._came_in_chunks(above))

    def check(self, told: ParentCompleted, doomed: bool = False) -> None:
        """A parent that was `doomed` did not wait for the failure that the rules would show."""
        path = (told.microbatch, told.row)
        verdict = self._expected.parent(path)
        if verdict.outcome is None:
            self._stages.statistics.open += 1
            return
        assert told.outcome.value == verdict.outcome, f"{told} is not {verdict}"
        assert (told.cause is not None) == (verdict.outcome == "FAILED")
        assert told.attempts >= 1
        if told.cause is not None:
            causes = self._causes(told.cause, path)
            own = doomed and any(self._expected.gives(cause, path) for cause in causes)
            assert own or causes & verdict.causes, f"{told.cause} not in {verdict}"
        self._stages.statistics.gaps += len(told.gaps)
        names = {domain.name: domain.id for domain in self._plan.domains}
        gaps = [(names[gap.domain], gap.path) for gap in told.gaps]
        assert len(set(gaps)) == len(gaps)
        assert set(gaps) == verdict.gaps, f"{told.gaps} are not {verdict.gaps}"
        for key, gap in zip(gaps, told.gaps, strict=True):
            assert self._causes(gap.cause, path) & self._expected.gap_causes[key]
        self.check_values(told)

    def _causes(self, failure: Failure, parent: Path) -> set[Cause]:
        """The causes in the reference's words that it may be: a deadline is like any attempt."""
        names = {domain.name: domain.id for domain in self._plan.domains}
        types = {failure.type}
        if failure.type == DEADLINE_EXCEEDED:
            slow = [call for call, path in self._too_slow if path == (*parent, *failure.path)]
            types = {failed_type(failure.kind, call) for call in slow}
        domain = names[failure.domain]
        return {Cause(failure.kind, type, domain, failure.path) for type in types}

    def check_values(self, told: ParentCompleted) -> None:
        """The outputs are there, now and until the rows are released."""
        rows = [self._stages.all_rows(parts) for parts in told.outputs]
        if told.outcome.value != "COMPLETED":
            assert not rows, "nothing of a parent that is not COMPLETED is shown"
            return
        verdict = self._expected.parent((told.microbatch, told.row))
        if verdict.outcome is None:
            return
        for expected, found in zip(verdict.values, rows, strict=True):
            if expected is None:
                assert not found
            else:
                assert len(found) == 1
                assert matches(expected, found[0]), f"output {found[0]} is not {expected}"

    def descendants(self, domain: int, path: Path) -> int:
        total = 0
        for child in self._plan.domains:
            if child.parent == domain:
                n = self._expected.members(child.id, path)
                total += n
                total += sum(self.descendants(child.id, (*path, i)) for i in range(n))
        return total


def check_cuts(order: DispatchBatch, paths: list[Path]) -> None:
    """Values of different groups can be let go apart."""
    assert list(order.cuts) == sorted(set(order.cuts))
    assert all(0 < cut < order.rows for cut in order.cuts)
    groups = [path[:-1] if len(path) > 2 else path for path in paths]
    changes = {row for row in range(1, len(groups)) if groups[row] != groups[row - 1]}
    assert changes <= set(order.cuts), f"cuts {order.cuts}, groups {groups}"
    if len(paths[0]) == 2:
        assert not order.bars, "no group to bar at the root"
        return
    assert len(order.bars) == len(order.cuts) + 1
    bar_of = {groups[row]: order.bars[bisect_right(order.cuts, row)] for row in range(order.rows)}
    assert len(set(bar_of.values())) == len(bar_of), "two groups under one bar"
    for row, group in enumerate(groups):
        bar = order.bars[bisect_right(order.cuts, row)]
        assert bar == bar_of[group]
        assert bar[:2] == (paths[row][0], order.call)
