"""What follows from a Plan for the scheduler: who depends on whom, who reads which value.

Beside the Plan's own Ports there are hidden ones, numbered after them:

- outputs below the root are reduced with `fail` up to the root (settling rule 7);
- *done* Ports settle when all Grains of a reading Call under an Entity are terminal;
- the *handed* Port settles when the owner releases a parent.

The last two say when a value has had its last reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    OnFailure,
    Plan,
    Port,
    ReduceOp,
)

NEVER, ALWAYS = -1, 1 << 30


class Reaction(IntEnum):
    """What a settled Item sets off."""

    CALL = 0
    FILTER = 1
    COALESCE = 2
    BROADCAST = 3
    EXPAND = 4
    REDUCE = 5
    OUTPUT = 6
    RELEASE = 7


@dataclass(frozen=True, slots=True)
class Join:
    """A reduce, of the Plan or hidden. `on_failure` None: always PRESENT (done Ports)."""

    id: int
    domain: int
    child: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    on_failure: OnFailure | None
    max_missing: int | float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Values of `origin` under an Entity of `domain` go when all of `waits` are terminal there."""

    id: int
    origin: int
    domain: int
    waits: tuple[int, ...]


class Wiring:
    """Immutable after construction; shared by all microbatches."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.domain_of = [port.domain for port in plan.ports]
        self.parent_domain = [domain.parent for domain in plan.domains]
        self.depth = [domain.depth for domain in plan.domains]
        in_chunks = {domain for call in plan.calls for domain in call.chunked}
        self.chunked = [domain.id in in_chunks for domain in plan.domains]
        self.joins: list[Join] = [
            Join(
                reduce.id,
                reduce.domain,
                reduce.child_domain,
                reduce.sources,
                reduce.results,
                reduce.on_failure,
                reduce.max_missing,
            )
            for reduce in plan.reduces
        ]
        self._raised: dict[tuple[int, bool], int] = {}
        self.handed = self._hidden_port(0)
        self.output_at_root = [self._raise_to(port, 0, done=False) for port in plan.output_ports]
        self.list_depth, self.flat_masks = self._find_lists()
        self.origins = self._find_origins()
        self.releases = self._find_releases()
        self._index()
        self.dooms = self._find_dooms()

    # -- hidden Ports -----------------------------------------------------------------------

    def _hidden_port(self, domain: int) -> int:
        self.domain_of.append(domain)
        return len(self.domain_of) - 1

    def _raise_to(self, port: int, domain: int, *, done: bool) -> int:
        """A Port on the ancestor `domain` that settles when all of `port` below it have."""
        while self.domain_of[port] != domain:
            port = self._raised_once(port, done)
        return port

    def _raised_once(self, port: int, done: bool) -> int:
        known = self._raised.get((port, done))
        if known is not None:
            return known
        child = self.domain_of[port]
        parent = self.parent_domain[child]
        assert parent is not None
        result = self._hidden_port(parent)
        on_failure = None if done else OnFailure.FAIL
        self.joins.append(Join(len(self.joins), parent, child, (port,), (result,), on_failure))
        self._raised[port, done] = result
        return result

    # -- how values are stored --------------------------------------------------------------

    def _find_lists(self) -> tuple[list[int], tuple[int, ...]]:
        """Of each Port how deep its stored lists are taken apart; stored Ports that are masks."""
        plan = self.plan
        depth = [0] * len(plan.ports)
        masks = [0] if plan.source_is_mask and not plan.source_list_depth else []
        depth[0] = plan.source_list_depth
        for call in plan.calls:
            for port, levels, is_mask in zip(
                call.outputs, call.list_depths, call.masks, strict=True
            ):
                depth[port] = levels
                if is_mask and not levels:
                    masks.append(port)
        return depth, tuple(masks)

    # -- who reads which stored value -------------------------------------------------------

    def _find_origins(self) -> list[dict[int, int]]:
        """Of each Port of the Plan, the Ports whose stored values may show there, each with the
        highest Domain on the way: through a reduce, a value shows beside its siblings."""
        found: list[dict[int, int]] = []
        for port in self.plan.ports:
            match port.op:
                case ReduceOp(reduce=number, index=index):
                    below = found[self.plan.reduces[number].sources[index]]
                    found.append(
                        {one: self.common_ancestor(top, port.domain) for one, top in below.items()}
                    )
                case ExpandOp(source=source) | FilterOp(source=source) | BroadcastOp(source=source):
                    found.append(found[source])
                case CoalesceOp(sources=sources):
                    found.append(self._merged(*(found[source] for source in sources)))
                case _:
                    found.append({port.id: port.domain})
        return found

    def _merged(self, *origins: dict[int, int]) -> dict[int, int]:
        merged: dict[int, int] = {}
        for one in origins:
            for origin, top in one.items():
                merged[origin] = self.common_ancestor(merged.get(origin, top), top)
        return merged

    def _find_releases(self) -> list[Release]:
        readers: dict[int, dict[int, int]] = {
            port.id: {} for port in self.plan.ports if port.id in self.origins[port.id]
        }
        for reader, origins in self._find_readers():
            for origin, top in origins.items():
                readers[origin][reader] = self.common_ancestor(
                    top, readers[origin].get(reader, top)
                )
        return [
            self._release(number, origin, tops)
            for number, (origin, tops) in enumerate(readers.items())
        ]

    def _find_readers(self) -> Iterator[tuple[int, dict[int, int]]]:
        """(the Port that settles when it has read, what it reads)."""
        for call in self.plan.calls:
            yield call.outputs[0], self._merged(*(self.origins[port] for port in call.inputs))
        for output in self.plan.output_ports:
            yield self.handed, dict.fromkeys(self.origins[output], 0)
        for port in self.plan.ports:
            yield port.id, self._lists_read_by(port)

    def _lists_read_by(self, port: Port) -> dict[int, int]:
        """Stored lists that a structure operation looks into when it settles: for masks and, if
        the list is not taken apart at once where it is made, for lengths."""
        match port.op:
            case FilterOp(mask=looked_at):
                found = self.origins[looked_at]
            case ExpandOp(source=looked_at):
                found = self.origins[looked_at]
            case _:
                return {}
        return {
            origin: top
            for origin, top in found.items()
            if self.list_depth[origin] and origin != looked_at
        }

    def _release(self, number: int, origin: int, readers: dict[int, int]) -> Release:
        domain = self.domain_of[origin]
        for reader, top in readers.items():
            for one in (top, self.domain_of[reader]):
                domain = self.common_ancestor(domain, one)
        # A barred reader may be terminal before the value is made: wait for its maker too.
        ends = dict.fromkeys((self._maker(origin), *sorted(readers)))
        waits = tuple(self._raise_to(port, domain, done=True) for port in ends)
        return Release(number, origin, domain, waits)

    def _maker(self, origin: int) -> int:
        """The Port that settles with the Grain that makes the value."""
        op = self.plan.ports[origin].op
        return self.plan.calls[op.call].outputs[0] if isinstance(op, CallOutputOp) else origin

    def common_ancestor(self, one: int, other: int) -> int:
        """The lowest Domain that both are on or below."""
        while one != other:
            if self.depth[one] >= self.depth[other]:
                one = self._above(one)
            else:
                other = self._above(other)
        return one

    def _above(self, domain: int) -> int:
        parent = self.parent_domain[domain]
        assert parent is not None
        return parent

    # -- indexes ----------------------------------------------------------------------------

    def _index(self) -> None:
        plan = self.plan
        domains = range(len(plan.domains))
        reactions: list[list[tuple[Reaction, int]]] = [[] for _ in self.domain_of]
        for port in plan.ports:
            self._index_structure(port.id, reactions)
        for call in plan.calls:
            for source in dict.fromkeys(call.inputs):
                reactions[source].append((Reaction.CALL, call.id))
        for domain in plan.domains:
            for source in dict.fromkeys(self.expand_source(port) for port in domain.expands):
                reactions[source].append((Reaction.EXPAND, domain.id))
        for join in self.joins:
            for source in join.sources:
                reactions[source].append((Reaction.REDUCE, join.id))
        for output in dict.fromkeys(self.output_at_root):
            reactions[output].append((Reaction.OUTPUT, output))
        for release in self.releases:
            for wait in release.waits:
                reactions[wait].append((Reaction.RELEASE, release.id))
        self.reactions = [tuple(found) for found in reactions]
        self.ports_on = [
            tuple(port for port, at in enumerate(self.domain_of) if at == domain)
            for domain in domains
        ]
        self.calls_on = [
            tuple(call.id for call in plan.calls if call.domain == domain) for domain in domains
        ]
        self.children_of = [
            tuple(child.id for child in plan.domains if child.parent == domain)
            for domain in domains
        ]
        self.joins_into = [
            tuple(join.id for join in self.joins if join.domain == domain) for domain in domains
        ]
        self.joins_from = [
            tuple(join.id for join in self.joins if join.child == domain) for domain in domains
        ]
        self.broadcasts_into = [
            tuple(
                (port.op.source, port.id)
                for port in plan.ports
                if port.domain == domain and isinstance(port.op, BroadcastOp)
            )
            for domain in domains
        ]
        self._find_forgiving()

    def _index_structure(self, port: int, reactions: list[list[tuple[Reaction, int]]]) -> None:
        match self.plan.ports[port].op:
            case FilterOp(source=source, mask=mask):
                for one in {source, mask}:
                    reactions[one].append((Reaction.FILTER, port))
            case CoalesceOp(sources=sources):
                for one in dict.fromkeys(sources):
                    reactions[one].append((Reaction.COALESCE, port))
            case BroadcastOp(source=source):
                reactions[source].append((Reaction.BROADCAST, port))
            case _:
                pass

    # -- what is sure to fail a parent --------------------------------------------------------

    def _find_dooms(self) -> list[int]:
        """Of each Port: a failed Item there whose scope has at most this depth is sure to reach an
        output. No coalesce lies between, nor a reduce that may forgive it, nor a broadcast, which
        nobody may see."""
        dooms = [NEVER] * len(self.domain_of)
        for port in self.output_at_root:
            dooms[port] = ALWAYS
        # What depends on a Port has a higher number.
        for port in reversed(range(len(dooms))):
            for reaction, number in self.reactions[port]:
                dooms[port] = max(dooms[port], self._doom_beyond(dooms, reaction, number))
        return dooms

    def _doom_beyond(self, dooms: list[int], reaction: Reaction, number: int) -> int:
        match reaction:
            case Reaction.CALL:
                call = self.plan.calls[number]
                beyond = max(dooms[port] for port in call.outputs)
                return _with_its_scope(beyond, call.inputs)
            case Reaction.FILTER:
                return _with_its_scope(dooms[number], self.derived_from(number))
            case Reaction.EXPAND:
                return self._doom_of_expansion(dooms, number)
            case Reaction.REDUCE:
                return self._doom_of_reduce(dooms, self.joins[number])
            case _:
                return NEVER

    def _doom_of_expansion(self, dooms: list[int], domain: int) -> int:
        """Settling rule 6: the matching reduces follow the source, whatever they forgive."""
        joins = [self.joins[number] for number in self.joins_from[domain]]
        results = [one for join in joins if join.on_failure is not None for one in join.results]
        beyond = max((dooms[result] for result in results), default=NEVER)
        return _with_its_scope(beyond, map(self.expand_source, self.plan.domains[domain].expands))

    def _doom_of_reduce(self, dooms: list[int], join: Join) -> int:
        """Settling rule 3: the result has the scope of its own Entity, or a higher one."""
        depth = self.depth[join.domain]
        if join.on_failure is None or max(dooms[result] for result in join.results) < depth:
            return NEVER
        if join.on_failure is OnFailure.FAIL:
            return ALWAYS
        return _with_its_scope(depth, join.sources)

    def expand_source(self, port: int) -> int:
        """The list-valued Port that the expand Port takes apart."""
        op = self.plan.ports[port].op
        assert isinstance(op, ExpandOp)
        return op.source

    def _find_forgiving(self) -> None:
        """Ports that derive from a reduce that skips, so that gaps need to be looked for."""
        self.may_have_gaps: list[bool] = []
        for port in self.plan.ports:
            self.may_have_gaps.append(self._gaps_possible(port.id))

    def _gaps_possible(self, port: int) -> bool:
        op = self.plan.ports[port].op
        if isinstance(op, ReduceOp):
            reduce = self.plan.reduces[op.reduce]
            if reduce.on_failure is OnFailure.SKIP:
                return True
        return any(self.may_have_gaps[source] for source in self.derived_from(port))

    def derived_from(self, port: int) -> tuple[int, ...]:
        """The Ports that this one is directly made from; of a list, also those that say how many
        members there are."""
        match self.plan.ports[port].op:
            case CallOutputOp(call=call):
                return self.plan.calls[call].inputs
            case ReduceOp(reduce=number):
                reduce = self.plan.reduces[number]
                expands = self.plan.domains[reduce.child_domain].expands
                return (*reduce.sources, *map(self.expand_source, expands))
            case ExpandOp(source=source) | BroadcastOp(source=source):
                return (source,)
            case FilterOp(source=source, mask=mask):
                return (source, mask)
            case CoalesceOp(sources=sources):
                return sources
            case _:
                return ()


def _with_its_scope(beyond: int, sources: Iterable[int]) -> int:
    """Where another source's failure may show in a failure's place, its scope is not sure."""
    return beyond if beyond == ALWAYS or len(set(sources)) == 1 else NEVER
