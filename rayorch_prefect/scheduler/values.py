"""Where the values of Items lie: structure operations are followed to what is stored.

Structure operations never copy a value: a filter, coalesce or broadcast shows its source's
value, an expand an element of it, a reduce a list of its members. All functions here read the
tables of one microbatch and change nothing; they hold only for PRESENT Items.
"""

from __future__ import annotations

from collections.abc import Sequence

from rayorch_prefect.errors import InternalError
from rayorch_prefect.model.members import KeptFailure
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.model.parts import (
    Part,
    append,
    extend,
    kept,
    member_list,
    plain_list,
    repeated,
    values_at,
)
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    OnFailure,
    ReduceOp,
    SourceOp,
)
from rayorch_prefect.scheduler.items import ListItem
from rayorch_prefect.scheduler.lineage import EveryMember
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.wiring import Join


class Values:
    """Reader of values' addresses in one microbatch."""

    def __init__(self, microbatch: Microbatch) -> None:
        self._mb = microbatch
        self._wiring = microbatch.wiring
        self._ports = microbatch.wiring.plan.ports

    # -- parts: what to send for a range of Entities -----------------------------------------

    def parts(self, port: int, first: int, end: int) -> list[Part]:
        """The parts of a Port at Entities first..end-1, one row each."""
        found: list[Part] = []
        match self._ports[port].op:
            case SourceOp() | CallOutputOp():
                return self._origin_parts(port, first, end)
            case FilterOp(source=source):
                return self.parts(source, first, end)
            case CoalesceOp():
                for entity in range(first, end):
                    extend(found, self.parts(self._chosen(port, entity), entity, entity + 1))
            case BroadcastOp(source=source):
                for group, start, stop in self._groups(port, first, end):
                    (one,) = self.parts(source, group, group + 1)
                    found.append(one if stop - start == 1 else repeated(one, stop - start))
            case ExpandOp(source=source):
                domain = self._ports[port].domain
                for group, start, stop in self._groups(port, first, end):
                    low = self._mb.lineage.ordinal(domain, start)
                    extend(found, self._elements(source, group, low, low + stop - start))
            case ReduceOp(reduce=number, index=index):
                join = self._wiring.joins[number]
                found.extend(self._reduced(join, index, entity) for entity in range(first, end))
        return found

    def output_parts(self, port: int, root: int) -> list[Part]:
        """The one part of an output at a parent; outputs below the root are nested lists."""
        domain = self._ports[port].domain
        return [self._nested(port, domain, 0, root)]

    def _nested(self, port: int, domain: int, at: int, entity: int) -> Part:
        """Everything of `port` under an Entity of the Domain `at`."""
        if domain == at:
            (one,) = self.parts(port, entity, entity + 1)
            return one
        below = domain
        while self._wiring.parent_domain[below] != at:
            below = self._above(below)
        inner: list[Part] = []
        for member in self._mb.lineage.members(below, entity):
            if below != domain or self._present(port, member):
                append(inner, self._nested(port, domain, below, member))
        return plain_list(inner)

    def _origin_parts(self, port: int, first: int, end: int) -> list[Part]:
        found: list[Part] = []
        if self._wiring.list_depth[port]:
            lists = self._mb.items.lists[port]
            return [self._list_part(lists[entity]) for entity in range(first, end)]
        for group, start, stop in self._groups(port, first, end):
            for slot, n in self._mb.items.stored(port, group, start, stop):
                append(found, values_at(slot, n))
        return found

    def _list_part(self, item: ListItem) -> Part:
        return plain_list(self._items_of(item, 0, item.length))

    def _items_of(self, item: ListItem, low: int, high: int) -> list[Part]:
        if item.inner is not None:
            return [self._list_part(element) for element in item.inner[low:high]]
        return [values_at(slot, n) for slot, n in item.stored(low, high)]

    def _reduced(self, join: Join, index: int, entity: int) -> Part:
        source = join.sources[index]
        members = self.members(join, entity)
        lineage = self._mb.lineage
        if isinstance(members, range | EveryMember):
            every: list[Part] = []
            for first, end in lineage.spans(join.child, entity):
                extend(every, self.parts(source, first, end))
            return member_list(every, None, ())
        missing = self._mb.items.gaps.get((join.id, entity), ())
        inner: list[Part] = []
        ordinals: list[int] = []
        for member in members:
            ordinals.append(lineage.ordinal(join.child, member))
            if self.member_failed(join, member):
                inner.append(kept(self._kept_failure(join, member)))
            else:
                extend(inner, self.parts(source, member, member + 1))
        return member_list(inner, tuple(ordinals), missing)

    def _kept_failure(self, join: Join, member: int) -> KeptFailure:
        for source in join.sources:
            if self._outcome(source, member) >= Outcome.FAILED:
                failure, _ = self._mb.items.cause[source][member]
                return KeptFailure(failure.kind, failure.path, failure.type, failure.message)
        raise InternalError("a kept member has no failure")

    # -- members -------------------------------------------------------------------------------

    def member_failed(self, join: Join, member: int) -> bool:
        """Settling rule 5: a member is failed if any of its Ports is."""
        return any(self._outcome(port, member) >= Outcome.FAILED for port in join.sources)

    def members(self, join: Join, entity: int) -> Sequence[int]:
        """The members in a reduced list, as they were found when it was made."""
        return self._mb.items.members[join.id, entity]

    def find_members(self, join: Join, entity: int) -> Sequence[int]:
        """The terminal members that belong: not the DROPPED, the failed only if it keeps them."""
        every = self._mb.lineage.members(join.child, entity)
        if self._all_present(join, entity):
            return every
        found: list[int] = []
        for member in every:
            outcomes = [self._outcome(port, member) for port in join.sources]
            failed = max(outcomes) >= Outcome.FAILED
            if (failed and join.on_failure is OnFailure.KEEP) or (
                not failed and Outcome.DROPPED not in outcomes
            ):
                found.append(member)
        return found

    def _all_present(self, join: Join, entity: int) -> bool:
        present, spans = self._mb.items.all_present, self._mb.lineage.spans(join.child, entity)
        return all(present(port, *span) for port in join.sources for span in spans)

    # -- lists and elements ----------------------------------------------------------------------

    def length(self, port: int, entity: int) -> int:
        """How many children an expansion of this list makes."""
        match self._ports[port].op:
            case SourceOp() | CallOutputOp():
                return self._mb.items.lists[port][entity].length
            case ReduceOp(reduce=number):
                return len(self.members(self._wiring.joins[number], entity))
            case ExpandOp():
                behind = self._behind(port, entity)
                if behind is not None:
                    return self.length(*behind)
                return self._element_list(port, entity).length
            case _:
                return self.length(*self._aliased(port, entity))

    def _elements(self, port: int, entity: int, low: int, high: int) -> list[Part]:
        match self._ports[port].op:
            case SourceOp() | CallOutputOp():
                return self._items_of(self._mb.items.lists[port][entity], low, high)
            case ReduceOp(reduce=number, index=index):
                join = self._wiring.joins[number]
                chosen = self.members(join, entity)[low:high]
                if isinstance(chosen, range):
                    return self.parts(join.sources[index], chosen.start, chosen.stop)
                found: list[Part] = []
                for member in chosen:
                    extend(found, self.parts(join.sources[index], member, member + 1))
                return found
            case ExpandOp():
                behind = self._behind(port, entity)
                if behind is not None:
                    return self._elements(*behind, low, high)
                return self._items_of(self._element_list(port, entity), low, high)
            case _:
                return self._elements(*self._aliased(port, entity), low, high)

    def _behind(self, port: int, entity: int) -> tuple[int, int] | None:
        """The member that an element of an expanded reduced list is; None for a stored element."""
        op = self._ports[port].op
        if not isinstance(op, ExpandOp):
            return None
        parent, ordinal = self._place_in_parent(port, entity)
        source, at = self._origin_of_list(op.source, parent)
        while (behind := self._behind(source, at)) is not None:
            source, at = self._origin_of_list(*behind)
        listed = self._ports[source].op
        if not isinstance(listed, ReduceOp):
            return None
        join = self._wiring.joins[listed.reduce]
        return join.sources[listed.index], self.members(join, at)[ordinal]

    def _element_list(self, port: int, entity: int) -> ListItem:
        """The list that an element of an expanded list of lists is."""
        item = self._find_list(port, entity)
        if item is None:
            raise InternalError(f"{self._ports[port].name} is not a list of lists")
        return item

    def _find_list(self, port: int, entity: int) -> ListItem | None:
        match self._ports[port].op:
            case SourceOp() | CallOutputOp():
                return self._mb.items.lists[port][entity]
            case ExpandOp(source=source):
                return self._list_element(source, *self._place_in_parent(port, entity))
            case ReduceOp():
                return None
            case _:
                return self._find_list(*self._aliased(port, entity))

    def _list_element(self, port: int, entity: int, ordinal: int) -> ListItem | None:
        """Element `ordinal` of a list of lists."""
        aliased, at = self._origin_of_list(port, entity)
        op = self._ports[aliased].op
        if isinstance(op, ReduceOp):
            join = self._wiring.joins[op.reduce]
            return self._find_list(join.sources[op.index], self.members(join, at)[ordinal])
        item = self._find_list(aliased, at)
        return item.inner[ordinal] if item is not None and item.inner is not None else None

    def _origin_of_list(self, port: int, entity: int) -> tuple[int, int]:
        """The Port that is no mere alias and shows the same value."""
        while isinstance(self._ports[port].op, FilterOp | CoalesceOp | BroadcastOp):
            port, entity = self._aliased(port, entity)
        return port, entity

    # -- masks -----------------------------------------------------------------------------------

    def mask(self, port: int, entity: int) -> bool:
        """The boolean value of a PRESENT mask Item."""
        port, entity = self._origin_of_list(port, entity)
        op = self._ports[port].op
        if isinstance(op, ExpandOp):
            return self._element_mask(op.source, *self._place_in_parent(port, entity))
        return bool(self._mb.items.mask[port][entity])

    def _element_mask(self, port: int, entity: int, ordinal: int) -> bool:
        port, entity = self._origin_of_list(port, entity)
        op = self._ports[port].op
        if isinstance(op, ReduceOp):
            join = self._wiring.joins[op.reduce]
            return self.mask(join.sources[op.index], self.members(join, entity)[ordinal])
        behind = self._behind(port, entity)
        if behind is not None:
            return self._element_mask(*behind, ordinal)
        item = self._find_list(port, entity)
        if item is None or item.mask is None:
            raise InternalError(f"{self._ports[port].name} was not reported as a mask")
        return bool(item.mask[ordinal])

    # -- small steps -----------------------------------------------------------------------------

    def _outcome(self, port: int, entity: int) -> int:
        return self._mb.items.outcome[port][entity]

    def _present(self, port: int, entity: int) -> bool:
        return self._outcome(port, entity) == Outcome.PRESENT

    def _groups(self, port: int, first: int, end: int) -> list[tuple[int, int, int]]:
        return self._mb.groups(self._ports[port].domain, first, end)

    def _above(self, domain: int) -> int:
        parent = self._wiring.parent_domain[domain]
        assert parent is not None
        return parent

    def _chosen(self, port: int, entity: int) -> int:
        op = self._ports[port].op
        assert isinstance(op, CoalesceOp)
        for source in op.sources:
            if self._present(source, entity):
                return source
        raise InternalError("a PRESENT coalesce has no PRESENT source")

    def _aliased(self, port: int, entity: int) -> tuple[int, int]:
        """The (Port, Entity) that a filter, coalesce or broadcast shows."""
        match self._ports[port].op:
            case FilterOp(source=source):
                return source, entity
            case CoalesceOp():
                return self._chosen(port, entity), entity
            case BroadcastOp(source=source):
                return source, self._mb.group_of(self._ports[port].domain, entity)
            case _:
                raise InternalError(f"{self._ports[port].name} has a value of its own")

    def _place_in_parent(self, port: int, entity: int) -> tuple[int, int]:
        domain = self._ports[port].domain
        return (
            self._mb.lineage.parent[domain][entity],
            self._mb.lineage.ordinal(domain, entity),
        )
