"""Ready queues for a policy: the open work of each Call by parent.

Parents with ready Grains stand in one of two heaps of their Call: those that may have more Grains
in flight, and those *held back*, whose Grains only fill up the batch of a worker that would idle.
An entry that its parent has left behind is dropped when it comes to the top.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.policies import ParentWork, Policy, ranked
from rayorch_prefect.scheduler.queues import FirstRun, ReadyQueues
from rayorch_prefect.scheduler.run import Run

# (rank, arrived, a number of its own, what it stands for)
_Place = tuple[float, int, int, "_Line"]


@dataclass(slots=True, eq=False)
class _Line(ParentWork):
    """One parent's work. `drawn` of those in flight are about to be sent."""

    ranges: deque[EntityRange] = field(default_factory=deque[EntityRange])
    place: _Place | None = None
    held_back: bool = False
    drawn: int = 0


def ready_queues(plan: Plan, runs: Mapping[int, Run], policy: Policy | None) -> ReadyQueues:
    """The ready queues of a Plan; without a policy in the order of arrival."""

    def first_ready(call: int, known: EntityRange, limit: int) -> EntityRange | None:
        run = runs.get(known[0])
        found = run.mb.ready_run(call, known[1], known[2], limit) if run is not None else None
        return None if found is None else (known[0], *found)

    if policy is None:
        return ReadyQueues(len(plan.calls), first_ready)
    return ByParent(plan, runs, first_ready, policy)


class ByParent(ReadyQueues):
    """Owner of ready work under a policy. Closed batches go first, as they do under `fifo`."""

    def __init__(
        self,
        plan: Plan,
        runs: Mapping[int, Run],
        first_run: FirstRun,
        policy: Policy,
    ) -> None:
        super().__init__(len(plan.calls), first_run)
        self._policy = policy
        self._calls = plan.calls
        self._runs = runs
        self._numbers = count()
        # Of a Call: by microbatch and row.
        self._lines: list[dict[int, dict[int, _Line]]] = [{} for _ in plan.calls]
        self._free: list[list[_Place]] = [[] for _ in plan.calls]
        self._held_back: list[list[_Place]] = [[] for _ in plan.calls]
        self._sizes: dict[int, _Sizes] = {}

    # -- in ------------------------------------------------------------------------------------

    def push(self, call: int, microbatch: int, first: int, end: int) -> None:
        """See `ReadyQueues`."""
        for line, start, stop in self._pieces(call, microbatch, first, end):
            ranges = line.ranges
            if ranges and ranges[-1][2] == start:
                ranges[-1] = (microbatch, ranges[-1][1], stop)
            else:
                ranges.append((microbatch, start, stop))
            line.size = self._sizes[microbatch].of(self._calls[call].domain, line.row)
            self._put(line)

    def push_head(self, call: int, microbatch: int, entity: int) -> None:
        """See `ReadyQueues`."""
        for line, start, stop in self._pieces(call, microbatch, entity, entity + 1):
            line.ranges.appendleft((microbatch, start, stop))
            self._put(line)

    def push_last(self, call: int, microbatch: int, entity: int) -> None:
        """Its whole parent counts as the newest."""
        for line, start, stop in self._pieces(call, microbatch, entity, entity + 1):
            line.ranges.append((microbatch, start, stop))
            line.arrived = next(self._numbers)
            self._put(line)

    def sent(self, call: int, ranges: Sequence[EntityRange]) -> None:
        """See `ReadyQueues`."""
        for line, start, stop in self._all_pieces(call, ranges):
            line.in_flight += stop - start
            line.in_flight -= line.drawn
            line.drawn = 0
            self._put(line)

    def landed(self, call: int, ranges: Sequence[EntityRange]) -> None:
        """See `ReadyQueues`."""
        for line, start, stop in self._all_pieces(call, ranges):
            line.in_flight -= stop - start
            outcomes = self._runs[line.microbatch].mb.items.outcome[self._calls[call].outputs[0]]
            line.done += outcomes.count(Outcome.PRESENT, start, stop)
            self._put(line)

    # -- out -----------------------------------------------------------------------------------

    def has_ready(self, call: int) -> bool:
        """See `ReadyQueues`."""
        return super().has_ready(call) or any(
            self._first_in(call, heaps[call]) is not None for heaps in (self._free, self._held_back)
        )

    def head(self, call: int) -> EntityRange | None:
        """The first range of the oldest parent; its first Grain is READY."""
        if super().has_ready(call):
            return self._queues[call][0].ranges[0]
        line = self._oldest(call)
        return None if line is None else line.ranges[0]

    def reserve_head(self, call: int, limit: int) -> list[EntityRange]:
        """Up to `limit` Grains of the oldest parent, or the closed batch that goes first."""
        if super().has_ready(call):
            return super().reserve(call, limit)
        line = self._oldest(call)
        return [] if line is None else self._draw(line, limit)

    def closed_at_head(self, call: int) -> int:
        """See `ReadyQueues`."""
        return super().closed_at_head(call) if super().has_ready(call) else 0

    def reserve(self, call: int, limit: int) -> list[EntityRange]:
        """Up to `limit` Grains as the policy says, or the closed batch that goes first."""
        if super().has_ready(call):
            return super().reserve(call, limit)
        return self.take_open(call, limit)

    def reserve_full(self, call: int, limit: int) -> list[EntityRange]:
        """A batch of `limit` Grains none of which is held back, or nothing."""
        if super().has_ready(call):
            return []
        taken = self.take_open(call, limit, ahead=True)
        if _rows(taken) < limit:
            self._put_back(call, taken)
            return []
        return taken

    def take_open(self, call: int, limit: int, *, ahead: bool = False) -> list[EntityRange]:
        """Up to `limit` Grains that stand in no closed batch; none that is held back if they go
        ahead, to where they have to wait."""
        taken = self._take_from(call, self._free[call], limit)
        left = limit - _rows(taken)
        if left and not ahead and not (taken and self._policy.one_parent):
            taken += self._take_from(call, self._held_back[call], left)
        return taken

    def _take_from(self, call: int, heap: list[_Place], limit: int) -> list[EntityRange]:
        taken: list[EntityRange] = []
        while limit and (line := self._first_in(call, heap)) is not None:
            most = None if line.held_back else self._policy.most(line)
            room = limit if most is None else max(1, min(limit, most - line.in_flight))
            more = self._draw(line, room)
            limit -= _rows(more)
            taken += more
            if self._policy.one_parent:
                break
        return taken

    def _draw(self, line: _Line, limit: int) -> list[EntityRange]:
        taken = self._take(line.call, line, limit)
        rows = _rows(taken)
        line.in_flight += rows
        line.drawn += rows
        self._put(line)
        return taken

    def _put_back(self, call: int, taken: list[EntityRange]) -> None:
        for number, start, stop in reversed(taken):
            for line, _, _ in self._pieces(call, number, start, stop):
                line.ranges.appendleft((number, start, stop))
                line.in_flight -= line.drawn
                line.drawn = 0
                self._put(line)

    # -- the heaps -----------------------------------------------------------------------------

    def _put(self, line: _Line) -> None:
        """Put a parent where it belongs now."""
        if not line.ranges:
            line.place = None
            return
        rank, most = ranked(self._policy, line)
        held_back = most is not None and line.in_flight >= most
        place = line.place
        if place and place[:2] == (rank, line.arrived) and held_back == line.held_back:
            return
        line.held_back = held_back
        line.place = (rank, line.arrived, next(self._numbers), line)
        heap = (self._held_back if held_back else self._free)[line.call]
        heappush(heap, line.place)
        if len(heap) > 64 + 2 * sum(map(len, self._lines[line.call].values())):
            heap[:] = [one for one in heap if one[3].place is one]
            heapify(heap)

    def _first_in(self, call: int, heap: list[_Place]) -> _Line | None:
        """The parent at the top, which has READY Grains; what has none is dropped."""
        while heap:
            line = heap[0][3]
            if line.place is heap[0]:
                if self._next_run(call, line, 1) is not None:
                    return line
                line.place = None
            heappop(heap)
        return None

    def _oldest(self, call: int) -> _Line | None:
        """The first parent with READY Grains, by microbatch and row."""
        for _, lines in sorted(self._lines[call].items()):
            for _, line in sorted(lines.items()):
                if line.ranges and self._next_run(call, line, 1) is not None:
                    return line
        return None

    # -- parents -------------------------------------------------------------------------------

    def _pieces(
        self, call: int, microbatch: int, first: int, end: int
    ) -> Iterator[tuple[_Line, int, int]]:
        """A range cut where another parent begins."""
        run = self._runs.get(microbatch)
        if run is None:
            return
        sizes = self._sizes.get(microbatch)
        if sizes is None:
            self._sizes[microbatch] = sizes = _Sizes(run.mb)
        lines = self._lines[call].setdefault(microbatch, {})
        for row, start, stop in run.mb.roots(self._calls[call].domain, first, end):
            line = lines.get(row)
            if line is None:
                lines[row] = line = _Line(call, microbatch, row, next(self._numbers))
            yield line, start, stop

    def _all_pieces(
        self, call: int, ranges: Sequence[EntityRange]
    ) -> Iterator[tuple[_Line, int, int]]:
        for known in ranges:
            yield from self._pieces(call, *known)

    def ranges(self, call: int) -> list[EntityRange]:
        """See `ReadyQueues`."""
        lines = (line for known in self._lines[call].values() for line in known.values())
        return super().ranges(call) + [known for line in lines for known in line.ranges]

    def forget(self, microbatch: int) -> None:
        """See `ReadyQueues`."""
        super().forget(microbatch)
        self._sizes.pop(microbatch, None)
        for known in self._lines:
            for line in known.pop(microbatch, {}).values():
                line.ranges.clear()
                line.place = None


class _Sizes:
    """How many Entities of each Domain are known under each parent of a microbatch."""

    def __init__(self, mb: Microbatch) -> None:
        self._mb = mb
        self._seen = [0] * len(mb.lineage.count)
        self._known: list[dict[int, int]] = [{} for _ in self._seen]

    def of(self, domain: int, row: int) -> int:
        """The Entities of a Domain under a parent. Each Entity is looked at once."""
        end = self._mb.lineage.count[domain]
        known = self._known[domain]
        for root, first, stop in self._mb.roots(domain, self._seen[domain], end):
            known[root] = known.get(root, 0) + stop - first
        self._seen[domain] = end
        return known.get(row, 0)


def _rows(ranges: Sequence[EntityRange]) -> int:
    return sum(end - first for _, first, end in ranges)
