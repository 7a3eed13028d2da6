"""The contract, evaluated by recursion: what every legal schedule must come to.

Written from the words of the contract ("When an Item settles", "Failure") and a Plan; it knows
nothing of the scheduler. An Item is a set of *options*: one, unless a bar makes it depend on the
schedule which sibling had committed before. An option is a tuple:

("P", value, gaps)       PRESENT; gaps are (Domain, path) of what forgiving reduces left out
("D", None, gaps)        DROPPED; a gap may be why, so its name is not lost
("F", depth, cause)      FAILED or SUPPRESSED, with the depth of its scope
("O",)                   the contract leaves it open (see `Evaluator.parent`)

A path holds (microbatch, row, ordinal, ordinal, ...). Values are symbolic trees: a leaf
("v", Port, path, place, truth) of what a Call or the source made, ("L", rows) a list,
("M", rows, ordinals, missing) what a reduce gives, ("K", possible) a kept failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias

from rayorch_prefect.model.outcomes import TOO_MANY_GAPS, Kind
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    OnFailure,
    Plan,
    ReduceOp,
)

Path: TypeAlias = tuple[int, ...]
Value: TypeAlias = tuple[Any, ...]
Option: TypeAlias = tuple[Any, ...]
Options: TypeAlias = frozenset[Option]
GapKey: TypeAlias = tuple[int, Path]

OPEN: Option = ("O",)
NO_GAPS: frozenset[GapKey] = frozenset()
MOST_OPTIONS = 300


class Cause(NamedTuple):
    """What the contract says of a failure; `path` from the parent down."""

    kind: Kind
    type: str
    domain: int
    path: Path


@dataclass(frozen=True)
class Deed:
    """What a Grain does: a value (kind None), or a failure. `attempts` fail before that."""

    kind: Kind | None = None
    attempts: int = 0


class Behaviour(Protocol):
    """Pure functions of what a row is."""

    def deed(self, call: int, path: Path) -> Deed: ...
    def children(self, maker: int, path: Path, place: Path) -> int: ...
    def truth(self, port: int, path: Path, place: Path) -> bool: ...


@dataclass(frozen=True)
class Verdict:
    """Of one parent. `outcome` None: the contract leaves it open."""

    outcome: str | None
    values: tuple[Value | None, ...] = ()
    gaps: frozenset[GapKey] = NO_GAPS
    causes: frozenset[Cause] = frozenset()


@dataclass(frozen=True)
class _Partial:
    """A reduced list on its way, ordinal by ordinal."""

    rows: tuple[tuple[Value, ...], ...] = ()
    ordinals: Path = ()
    missing: Path = ()
    gaps: frozenset[GapKey] = NO_GAPS
    first: frozenset[tuple[int, Cause]] = frozenset()
    failed: int = 0


def failed_type(kind: Kind, call: int) -> str:
    """The type of every failure of a Call's Grains."""
    return f"{kind.value} of Call {call}"


class Evaluator:
    """Answers for all microbatches of one Plan under one Behaviour."""

    def __init__(self, plan: Plan, behaviour: Behaviour) -> None:
        self.plan = plan
        self.does = behaviour
        self.gap_causes: dict[GapKey, set[Cause]] = {}
        self.forgiven = 0
        self._items: dict[tuple[int, Path], Options] = {}
        self._joins: dict[tuple[int, Path], frozenset[Option]] = {}
        self._grains: dict[tuple[int, Path], Options] = {}
        self._members: dict[tuple[int, Path], int] = {}
        self._verdicts: dict[Path, Verdict] = {}

    # -- values -------------------------------------------------------------------------------

    def made(self, port: int, path: Path) -> Value:
        """What a Call or the source makes for an output Port at an Entity."""
        return self._nested(port, path, (), self.list_depth(port))

    def _nested(self, port: int, path: Path, place: Path, depth: int) -> Value:
        if not depth:
            return ("v", port, path, place, self.does.truth(port, path, place))
        n = self.does.children(self._maker(port), path, place)
        return ("L", tuple(self._nested(port, path, (*place, i), depth - 1) for i in range(n)))

    def _maker(self, port: int) -> int:
        """Outputs of one Call have lists of equal lengths."""
        op = self.plan.ports[port].op
        return op.call if isinstance(op, CallOutputOp) else -1

    def list_depth(self, port: int) -> int:
        """How many levels of the stored lists of a Port are taken apart."""
        op = self.plan.ports[port].op
        if isinstance(op, CallOutputOp):
            return self.plan.calls[op.call].list_depths[op.index]
        return self.plan.source_list_depth

    # -- Items --------------------------------------------------------------------------------

    def item(self, port: int, path: Path) -> Options:
        """The options of an Item."""
        known = self._items.get((port, path))
        if known is None:
            known = frozenset(self._item(port, path))
            if OPEN in known or len(known) > MOST_OPTIONS:
                known = frozenset((OPEN,))
            self._items[port, path] = known
        return known

    def _item(self, port: int, path: Path) -> Iterable[Option]:
        op = self.plan.ports[port].op
        match op:
            case CallOutputOp(call=call):
                return self._with_values(port, path, self._grain(call, path))
            case ExpandOp(source=source):
                return self._element(source, path)
            case BroadcastOp(source=source):
                return self.item(source, path[:-1])
            case FilterOp(source=source, mask=mask):
                return self._filtered(source, mask, path)
            case CoalesceOp(sources=sources):
                return {self._first_present(found) for found in self._product(sources, path)}
            case ReduceOp(reduce=number, index=index):
                return {_project(option, index) for option in self._reduced(number, path)}
            case _:
                return (("P", self.made(port, path), NO_GAPS),)

    def _product(self, ports: tuple[int, ...], path: Path) -> Iterator[tuple[Option, ...]]:
        return product(*(self.item(port, path) for port in ports))

    def _with_values(self, port: int, path: Path, options: Options) -> Iterator[Option]:
        for option in options:
            yield ("P", self.made(port, path), option[2]) if option[0] == "P" else option

    def _element(self, source: int, path: Path) -> Iterator[Option]:
        """The Entity exists only where the list was PRESENT."""
        for option in self.item(source, path[:-1]):
            if option == OPEN:
                yield OPEN
            elif option[0] == "P" and path[-1] < len(option[1][1]):
                yield ("P", option[1][1][path[-1]], option[2])

    def _filtered(self, source: int, mask: int, path: Path) -> Iterator[Option]:
        for found in self._product((source, mask), path):
            option = judge(found)
            if option[0] != "P":
                yield option
            elif found[1][1][4]:
                yield ("P", found[0][1], option[2])
            else:
                yield ("D", None, option[2])

    def _first_present(self, found: tuple[Option, ...]) -> Option:
        if OPEN in found:
            return OPEN
        gaps = NO_GAPS
        for option in found:
            if option[0] == "P":
                return ("P", option[1], gaps | option[2])
            if option[0] == "D":
                gaps |= option[2]
        return judge(found)

    # -- Calls and bars -----------------------------------------------------------------------

    def _grain(self, call: int, path: Path) -> Options:
        """Failure rules 1 and 2; a bar may come before or after any sibling's commit."""
        known = self._grains.get((call, path))
        if known is not None:
            return known
        found = set(self._alone(call, path))
        depth = len(path) - 2
        if depth and OPEN not in found:
            for sibling in self._siblings(call, path):
                if sibling != path and self.may_bar(call, sibling):
                    found.add(("F", depth - 1, self._cause(call, sibling, Kind.GROUP_FAILURE)))
        known = self._grains[call, path] = frozenset(found)
        return known

    def _alone(self, call: int, path: Path) -> Iterator[Option]:
        deed = self.does.deed(call, path)
        budget = self.plan.pools[self.plan.calls[call].pool].retry_budget
        kind = Kind.ATTEMPTS_EXHAUSTED if deed.attempts >= budget else deed.kind
        depth = len(path) - 2
        for found in self._product(self.plan.calls[call].inputs, path):
            option = judge(found)
            if option[0] != "P" or kind is None:
                yield option
            else:
                scope = max(0, depth - 1) if kind is Kind.GROUP_FAILURE else depth
                yield ("F", scope, self._cause(call, path, kind))

    def may_bar(self, call: int, path: Path) -> bool:
        """Whether a Grain ends with a GroupFailure, if it runs."""
        deed = self.does.deed(call, path)
        budget = self.plan.pools[self.plan.calls[call].pool].retry_budget
        if deed.kind is not Kind.GROUP_FAILURE or deed.attempts >= budget:
            return False
        inputs = self.plan.calls[call].inputs
        return any(judge(found)[0] in "PO" for found in self._product(inputs, path))

    def _siblings(self, call: int, path: Path) -> list[Path]:
        n = self.members(self.plan.calls[call].domain, path[:-1])
        return [(*path[:-1], ordinal) for ordinal in range(n)]

    def _cause(self, call: int, path: Path, kind: Kind) -> Cause:
        return Cause(kind, failed_type(kind, call), self.plan.calls[call].domain, path[2:])

    # -- members and reduces ------------------------------------------------------------------

    def gives(self, cause: Cause, path: Path) -> bool:
        """Whether a Grain of the parent at `path`, left to itself, fails so."""
        for call in self.plan.calls:
            if call.domain != cause.domain or cause.type != failed_type(cause.kind, call.id):
                continue
            deed = self.does.deed(call.id, (*path, *cause.path))
            spent = deed.attempts >= self.plan.pools[call.pool].retry_budget
            return cause.kind is (Kind.ATTEMPTS_EXHAUSTED if spent else deed.kind)
        return False

    def _expand_sources(self, domain: int) -> tuple[int, ...]:
        ops = [self.plan.ports[port].op for port in self.plan.domains[domain].expands]
        return tuple(op.source for op in ops if isinstance(op, ExpandOp))

    def members(self, domain: int, path: Path) -> int:
        """How many members a direct parent has, if its expansion happens; -1: open."""
        known = self._members.get((domain, path))
        if known is None:
            options = self.item(self._expand_sources(domain)[0], path)
            lengths = {len(option[1][1]) for option in options if option[0] == "P"}
            known = -1 if OPEN in options or len(lengths) > 1 else max(lengths, default=0)
            self._members[domain, path] = known
        return known

    def _reduced(self, number: int, path: Path) -> frozenset[Option]:
        known = self._joins.get((number, path))
        if known is None:
            known = self._joins[number, path] = frozenset(self._reduce(number, path))
        return known

    def _reduce(self, number: int, path: Path) -> Iterator[Option]:
        reduce = self.plan.reduces[number]
        for found in self._product(self._expand_sources(reduce.child_domain), path):
            option = judge(found)
            if option[0] == "P":
                yield from self._of_members(number, path, option[2])
            else:  # settling rule 6
                yield option

    def _of_members(self, number: int, path: Path, gaps: frozenset[GapKey]) -> Iterator[Option]:
        reduce = self.plan.reduces[number]
        n = self.members(reduce.child_domain, path)
        if n < 0:
            yield OPEN
            return
        states: set[_Partial | Option] = {_Partial(gaps=gaps)}
        for ordinal in range(n):
            states = self._step(number, (*path, ordinal), states)
            if OPEN in states or len(states) > MOST_OPTIONS:
                yield OPEN
                return
        for state in states:
            if isinstance(state, _Partial):
                yield from self._finished(number, path, state)
            else:
                yield state

    def _step(
        self, number: int, member: Path, states: set[_Partial | Option]
    ) -> set[_Partial | Option]:
        """Settling rules 3 and 5 for one member."""
        reduce = self.plan.reduces[number]
        depth = len(member) - 3
        found: set[_Partial | Option] = {state for state in states if isinstance(state, tuple)}
        statuses: set[Option] = set()
        for one in self._product(reduce.sources, member):
            status = judge(one)
            rows = tuple(option[1] for option in one) if status[0] == "P" else ()
            statuses.add(("P", rows, status[2]) if status[0] == "P" else status)
        failures = frozenset(status[1:] for status in statuses if status[0] == "F")
        forgiven = frozenset(
            failure
            for failure in failures
            if reduce.on_failure is not OnFailure.FAIL and failure[0] > depth
        )
        for state in [state for state in states if isinstance(state, _Partial)]:
            for status in statuses:
                if status == OPEN:
                    found.add(OPEN)
                elif status[0] == "D":
                    found.add(replace(state, gaps=state.gaps | status[2]))
                elif status[0] == "P":
                    found.add(_taken(state, member[-1], status[1], status[2]))
            for scope, cause in state.first or (failures - forgiven):
                if failures - forgiven:
                    found.add(("F", min(depth, scope), cause))
            if forgiven:
                found.add(self._forgive(number, member, state, forgiven))
        return found

    def _forgive(
        self,
        number: int,
        member: Path,
        state: _Partial,
        failures: frozenset[tuple[int, Cause]],
    ) -> _Partial:
        reduce = self.plan.reduces[number]
        first = state.first or failures
        self.forgiven += 1
        if reduce.on_failure is OnFailure.KEEP:
            shown = ("K", frozenset((cause.kind, cause.path) for _, cause in failures))
            kept = _taken(state, member[-1], (shown,) * len(reduce.sources), NO_GAPS)
            return _Partial(kept.rows, kept.ordinals, (), state.gaps, first, state.failed + 1)
        key = (reduce.child_domain, member[2:])
        self.gap_causes.setdefault(key, set()).update(cause for _, cause in failures)
        return _Partial(
            state.rows,
            state.ordinals,
            (*state.missing, member[-1]),
            state.gaps | {key},
            first,
            state.failed + 1,
        )

    def _finished(self, number: int, path: Path, state: _Partial) -> Iterator[Option]:
        """Settling rule 4."""
        reduce = self.plan.reduces[number]
        depth, left, failed = len(path) - 2, len(state.rows), state.failed
        if reduce.on_failure is OnFailure.SKIP and failed:
            limit = reduce.max_missing
            found = failed / (left + failed) if isinstance(limit, float) else failed
            too_many = limit is not None and found > limit
            if not left or too_many:
                for scope, cause in state.first:
                    shown = cause._replace(type=TOO_MANY_GAPS) if left else cause
                    yield ("F", min(depth, scope), shown)
                return
        columns = tuple(
            ("M", tuple(row[index] for row in state.rows), state.ordinals, state.missing)
            for index in range(len(reduce.sources))
        )
        yield ("P", columns, state.gaps)

    # -- outputs ------------------------------------------------------------------------------

    def raised(self, port: int, at: int, path: Path) -> Options:
        """Settling rule 7: an output as if reduced with `fail`, as nested lists of values."""
        line = self._line(self.plan.ports[port].domain, at)
        if not line:
            return self.item(port, path)
        below = line[0]
        n = self.members(below, path)
        found: set[Option] = set()
        for sources in self._product(self._expand_sources(below), path):
            option = judge(sources)
            if n < 0 or option == OPEN:
                found.add(OPEN)
            elif option[0] == "F":
                found.add(option)
            else:
                some = n if option[0] == "P" else 0
                found |= self._raised_members(port, below, path, some, option[2])
        return frozenset(found)

    def _raised_members(
        self, port: int, below: int, path: Path, n: int, gaps: frozenset[GapKey]
    ) -> set[Option]:
        states: set[Option] = {("P", ("L", ()), gaps)}
        depth = len(path) - 2
        for ordinal in range(n):
            found: set[Option] = {state for state in states if state[0] != "P"}
            for state in states - found:
                for option in self.raised(port, below, (*path, ordinal)):
                    if option[0] == "P":
                        rows = (*state[1][1], option[1])
                        found.add(("P", ("L", rows), state[2] | option[2]))
                    elif option[0] == "F":
                        found.add(("F", min(depth, option[1]), option[2]))
                    elif option[0] == "D":
                        found.add(("P", state[1], state[2] | option[2]))
                    else:
                        found.add(OPEN)
            states = found
            if len(states) > MOST_OPTIONS:
                return {OPEN}
        return states

    def _line(self, domain: int, at: int) -> list[int]:
        """The Domains from just below `at` down to `domain`."""
        line: list[int] = []
        while domain != at:
            line.append(domain)
            domain = self.plan.domains[domain].parent or 0
        return line[::-1]

    def parent(self, path: Path) -> Verdict:
        """What must become of a parent.

        Open (outcome None) is what the contract does not decide: a bar's Items that reach a
        coalesce, or a join with an input of a higher scope, below the scope of the GroupFailure
        come out by which siblings had committed before the bar.
        """
        known = self._verdicts.get(path)
        if known is None:
            known = self._verdicts[path] = self._parent(path)
        return known

    def _parent(self, path: Path) -> Verdict:
        outputs = self.plan.output_ports
        options = [self.raised(port, 0, path) for port in outputs]
        causes = frozenset(one[2] for found in options for one in found if one[0] == "F")
        if any(OPEN in found for found in options):
            return Verdict(None)
        if any(all(one[0] == "F" for one in found) for found in options):
            return Verdict("FAILED", causes=causes)
        if any(len(found) > 1 for found in options):
            return Verdict(None)
        found = tuple(next(iter(one)) for one in options)
        on_root = [one for one, port in zip(found, outputs, strict=True) if self._on_root(port)]
        if on_root and all(one[0] == "D" for one in on_root):
            return Verdict("DROPPED")
        values = tuple(one[1] if one[0] == "P" else None for one in found)
        gaps = frozenset[GapKey]().union(*(one[2] for one in found))
        return Verdict("COMPLETED", values, self._highest(gaps))

    def _on_root(self, port: int) -> bool:
        return self.plan.ports[port].domain == 0

    def _highest(self, gaps: frozenset[GapKey]) -> frozenset[GapKey]:
        """Settling rule 8."""
        return frozenset(gap for gap in gaps if not any(up in gaps for up in self._above(gap)))

    def _above(self, gap: GapKey) -> Iterator[GapKey]:
        domain, path = gap
        while (above := self.plan.domains[domain].parent) is not None:
            domain, path = above, path[:-1]
            yield domain, path


def judge(found: tuple[Option, ...]) -> Option:
    """Settling rule 2: FAILED beats DROPPED beats PRESENT; the first failed input's cause."""
    if OPEN in found:
        return OPEN
    for option in found:
        if option[0] == "F":
            return option
    gaps = frozenset[GapKey]().union(*(option[2] for option in found))
    dropped = any(option[0] == "D" for option in found)
    return ("D" if dropped else "P", None, gaps)


def _project(option: Option, index: int) -> Option:
    return ("P", option[1][index], option[2]) if option[0] == "P" else option


def _taken(
    state: _Partial, ordinal: int, row: tuple[Value, ...], gaps: frozenset[GapKey]
) -> _Partial:
    return _Partial(
        (*state.rows, row),
        (*state.ordinals, ordinal),
        state.missing,
        state.gaps | gaps,
        state.first,
        state.failed,
    )
