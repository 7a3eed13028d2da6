"""A Grain's life in words, for a person: what the tables and the story know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.model.reports import RowFailure
from rayorch_prefect.program.plan import Call, Plan
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.parents import verdict
from rayorch_prefect.scheduler.story import Chapter, Story
from rayorch_prefect.scheduler.wiring import Join, Wiring

Path: TypeAlias = tuple[int, ...]
When: TypeAlias = Callable[[int], str]


def parsed_path(path: str | Sequence[int]) -> Path:
    """Ordinals from the parent down to an Entity, of `(3, 7)` or "3/7"; () or "" is the parent.

    Raises UsageError for what is neither.
    """
    try:
        found = path.strip("/").split("/") if isinstance(path, str) else list(path)
        ordinals = tuple(int(one) for one in found if one != "")
    except (TypeError, ValueError):
        ordinals = (-1,)
    if any(one < 0 for one in ordinals):
        raise UsageError(f"the path is {path!r}; expected ordinals from 0, such as (3, 7) or '3/7'")
    return ordinals


def by_number(event: int) -> str:
    """When something was: the number of the event."""
    return f"event {event}"


def story_of(
    scheduler: Scheduler, microbatch: int, row: int, path: Path = (), when: When = by_number
) -> str:
    """What became of an Entity: a line on what it is, each Call's Grain there, and its parent.

    `row` is the parent's index in its microbatch. What is no longer remembered is said to be so.
    Raises UsageError for a parent or an Entity that is not there.
    """
    mb = _remembered(scheduler, microbatch)
    if mb is None:
        return f"microbatch {microbatch} has left, and is no longer remembered"
    if not 0 <= row < mb.rows:
        raise UsageError(f"microbatch {microbatch} has rows 0 to {mb.rows - 1}, not {row}")
    teller = _Teller(scheduler.wiring, mb, scheduler.memory, when)
    return "\n".join(teller.lines(row, path))


def remembered_numbers(scheduler: Scheduler) -> set[int]:
    """The microbatches of which stories can be told."""
    return {*scheduler.runs, *(mb.number for mb in scheduler.memory.left)}


def _remembered(scheduler: Scheduler, microbatch: int) -> Microbatch | None:
    run = scheduler.runs.get(microbatch)
    if run is not None:
        return run.mb
    return next((mb for mb in scheduler.memory.left if mb.number == microbatch), None)


class Told(NamedTuple):
    """Whom of one microbatch a batch, or one row of it, is about: its parents by their index, each
    once; the Domain, and the path of the one row, () for several."""

    microbatch: int
    parents: tuple[int, ...]
    domain: str
    path: Path


def rows_told(scheduler: Scheduler, batch: int, row: int) -> list[Told]:
    """Whom a batch is about, by microbatch; with a `row` of 0 or more only whom that row is.

    Empty if the batch or its microbatches are no longer remembered.
    """
    chapter = scheduler.memory.chapter(batch) if batch >= 0 else None
    if chapter is None:
        return []
    ranges = chapter.ranges if row < 0 else _one_row(chapter.ranges, row)
    alone = sum(end - first for _, first, end in ranges) == 1
    domain = scheduler.plan.calls[chapter.call].domain
    found: dict[int, dict[int, None]] = {}
    path: Path = ()
    for number, first, end in ranges:
        mb = _remembered(scheduler, number)
        if mb is not None:
            parents = found.setdefault(number, {})
            parents.update((root, None) for root, _, _ in mb.roots(domain, first, end))
            path = mb.path(domain, first) if alone else ()
    name = scheduler.plan.domains[domain].name
    return [Told(number, tuple(parents), name, path) for number, parents in found.items()]


def _one_row(ranges: Sequence[EntityRange], row: int) -> tuple[EntityRange, ...]:
    for number, first, end in ranges:
        if row < end - first:
            return ((number, first + row, first + row + 1),)
        row -= end - first
    return ()


@dataclass(frozen=True, slots=True)
class _Teller:
    wiring: Wiring
    mb: Microbatch
    story: Story
    when: When

    @property
    def plan(self) -> Plan:
        return self.wiring.plan

    # -- where ---------------------------------------------------------------------------------

    def lines(self, row: int, path: Path) -> Iterator[str]:
        """All that is told of the Entities at a path: in side by side Domains there may be two."""
        found = list(self._entities(0, row, path))
        if not found:
            raise UsageError(f"row {row} has nothing at {_shown(path)}: {self._known(row, path)}")
        for domain, entity in found:
            yield f"{self._name(domain, entity)}, microbatch {self.mb.number}, row {row}"
            for number in self.wiring.calls_on[domain]:
                yield from self._grain(self.plan.calls[number], entity)
            if domain:
                yield from self._at_its_parent(domain, entity)
        yield self._parent(row)

    def _entities(self, domain: int, entity: int, path: Path) -> Iterator[tuple[int, int]]:
        if not path:
            yield domain, entity
            return
        for child in self.wiring.children_of[domain]:
            members = self.mb.lineage.members(child, entity)
            if path[0] < len(members):
                yield from self._entities(child, members[path[0]], path[1:])

    def _known(self, row: int, path: Path) -> str:
        """How far the path leads."""
        for depth in range(len(path) - 1, -1, -1):
            for domain, entity in self._entities(0, row, path[:depth]):
                below = [
                    f"{len(self.mb.lineage.members(child, entity))} of "
                    f"{self.plan.domains[child].name}"
                    f"{' so far' if self.mb.lineage.is_open(child, entity) else ''}"
                    for child in self.wiring.children_of[domain]
                ]
                return f"{self._name(domain, entity)} has {', '.join(below) or 'no children'}"
        raise AssertionError("a row is at its own path")

    def _name(self, domain: int, entity: int) -> str:
        path = self.mb.path(domain, entity)
        return f"{self.plan.domains[domain].name} {_shown(path)}".strip()

    # -- a Grain -------------------------------------------------------------------------------

    def _grain(self, call: Call, entity: int) -> Iterator[str]:
        grains = self.mb.grains
        yield f"  {call.stage} (Call {call.id}): {self._settled(call, entity)}"
        yield from (f"    {line}" for line in self._life(call, entity))
        generation = grains.generation[call.id].get(entity, 0)
        charged = grains.attempts[call.id].get(entity, 0)
        if generation:
            budget = self.plan.pools[call.pool].retry_budget
            yield f"    generation {generation}, {charged} of {budget} attempts charged"
        group = self.mb.group_of(call.domain, entity)
        barred = grains.barred[call.id].get(group) if call.domain else None
        if barred is not None:
            above = self.plan.domains[call.domain].parent or 0
            yield f"    barred under {self._name(above, group)} by {barred[0]}"

    def _settled(self, call: Call, entity: int) -> str:
        phase = Phase(self.mb.grains.phase[call.id][entity])
        if phase is Phase.WAITING:
            return f"WAITING for {', '.join(self._awaited(call, entity)) or 'its inputs'}"
        if phase is not Phase.ENDED:
            return phase.name
        port = call.outputs[0]
        outcome = Outcome(self.mb.items.outcome[port][entity])
        cause = self.mb.items.cause[port].get(entity)
        return f"ENDED, {outcome.name}" + (f" by {cause[0]}" if cause is not None else "")

    def _awaited(self, call: Call, entity: int) -> list[str]:
        outcome = self.mb.items.outcome
        return [
            self.plan.ports[port].name
            for port in call.inputs
            if outcome[port][entity] == Outcome.PENDING
        ]

    def _life(self, call: Call, entity: int) -> Iterator[str]:
        ready = self.story.ready_at(self.mb.number, call.id, entity)
        if ready is not None:
            yield f"{self.when(ready)}: ready"
        chapters = list(self.story.of_grain(self.mb.number, call.id, entity))
        for chapter, row in chapters:
            others = f" with {chapter.rows - 1} others" if chapter.rows > 1 else " alone"
            sent = f"sent in batch {chapter.batch} to worker {chapter.worker}{others}"
            yield f"{self.when(chapter.sent)}: {sent}"
            if chapter.ended:
                yield f"{self.when(chapter.ended)}: {_end(chapter, row)}"
        tried = self._least_tries(call, entity)
        is_ready = self.mb.grains.phase[call.id][entity] == Phase.READY
        if len(chapters) < tried or (ready is None and (tried or is_ready)):
            yield "(not all of it is remembered)"

    def _least_tries(self, call: Call, entity: int) -> int:
        """How many batches the Grain was in at the least."""
        generation = self.mb.grains.generation[call.id].get(entity, 0)
        outcome = self.mb.items.outcome[call.outputs[0]][entity]
        if self.mb.grains.phase[call.id][entity] == Phase.IN_FLIGHT or outcome == Outcome.PRESENT:
            return generation + 1
        # A spent budget raises the generation once more.
        return max(generation, int(outcome == Outcome.FAILED))

    # -- what came of it -----------------------------------------------------------------------

    def _at_its_parent(self, domain: int, entity: int) -> Iterator[str]:
        parent = self.mb.lineage.parent[domain][entity]
        above = self.plan.domains[domain].parent or 0
        ordinal = self.mb.lineage.ordinal(domain, entity)
        for number in self.wiring.joins_from[domain]:
            join = self.wiring.joins[number]
            if join.on_failure is None:
                continue
            names = [self._reduced(port) for port in join.results]
            said = self._of_join(join, parent, ordinal)
            yield f"  {', '.join(names)} at {self._name(above, parent)}: {said}"

    def _reduced(self, port: int) -> str:
        hidden = port >= len(self.plan.ports)
        return "all of it (an output below the root)" if hidden else self.plan.ports[port].name

    def _of_join(self, join: Join, parent: int, ordinal: int) -> str:
        port = join.results[0]
        outcome = Outcome(self.mb.items.outcome[port][parent])
        if outcome is Outcome.PENDING:
            return f"waits for {max(0, self.mb.pending[join.id][parent])} Items"
        missing = self.mb.items.gaps.get((join.id, parent), ())
        if ordinal in missing:
            return f"{outcome.name}, this one left out: a gap"
        cause = self.mb.items.cause[port].get(parent)
        return outcome.name + (f" by {cause[0]}" if cause is not None else "")

    def _parent(self, row: int) -> str:
        if not self.mb.completed[row]:
            left = self.mb.unreleased and self.mb in self.story.left
            return "parent: " + ("abandoned before its end" if left else "has not ended")
        outcome, cause, gaps = verdict(self.wiring, self.mb, row)
        said = [outcome.value + (f" by {cause}" if cause is not None else "")]
        said += [f"gap at {gap.domain} {_shown(gap.path)} ({gap.cause})" for gap in gaps]
        return "parent: " + "; ".join(said)


def _shown(path: Path) -> str:
    return "/".join(map(str, path))


def _end(chapter: Chapter, row: int) -> str:
    """How a batch ended for one of its rows."""
    if chapter.failures is None:
        return f"{chapter.end} (which rows, is no longer remembered)"
    failure = chapter.failures.get(row)
    if failure is not None:
        return f"this row {_failed(failure)}"
    if row in chapter.skipped:
        return "skipped, as its worker knew its group to be barred"
    return chapter.end


def _failed(failure: RowFailure) -> str:
    what = "attempt failed" if failure.kind is None else f"failed for good as {failure.kind.value}"
    backend = " (a service behind the stage is down)" if failure.backend else ""
    return f"{what}: {failure.type}: {failure.message}{backend}"
