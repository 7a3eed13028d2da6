"""Which Entities forgiving reduces left out of a parent.

Followed from the outputs to what they were made from. A gap may be why an Item is DROPPED or a
list is short, so that is looked at too; Entities below one that is left out are not.
"""

from __future__ import annotations

from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    ReduceOp,
    SourceOp,
)
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.values import Values
from rayorch_prefect.scheduler.wiring import Join


class GapSearch:
    """One search; `found` holds (Domain, Entity). Each Item is looked at once."""

    def __init__(self, microbatch: Microbatch) -> None:
        self.found: set[tuple[int, int]] = set()
        self._mb = microbatch
        self._wiring = microbatch.wiring
        self._values = Values(microbatch)
        self._seen: set[tuple[int, int]] = set()
        self._lists_seen: set[tuple[int, int]] = set()

    def look_at(self, port: int, entity: int) -> None:
        """Find what was left out on the way to an Item."""
        if not self._wiring.may_have_gaps[port] or (port, entity) in self._seen:
            return
        self._seen.add((port, entity))
        if self._outcome(port, entity) not in (Outcome.PRESENT, Outcome.DROPPED):
            return
        at = self._wiring.plan.ports[port]
        match at.op:
            case CallOutputOp(call=call):
                for source in self._wiring.plan.calls[call].inputs:
                    self.look_at(source, entity)
            case ReduceOp(reduce=number):
                self._look_at_list(self._wiring.joins[number], entity)
            case ExpandOp(source=source) | BroadcastOp(source=source):
                self.look_at(source, self._mb.group_of(at.domain, entity))
            case FilterOp(source=source, mask=mask):
                self.look_at(source, entity)
                self.look_at(mask, entity)
            case CoalesceOp(sources=sources):
                for source in sources:
                    self.look_at(source, entity)
                    if self._outcome(source, entity) == Outcome.PRESENT:
                        break
            case SourceOp():
                pass

    def look_at_members(self, domain: int, parent: int) -> None:
        """Find what was left out of the lists that a parent's members were made from."""
        for expand in self._wiring.plan.domains[domain].expands:
            self.look_at(self._wiring.expand_source(expand), parent)

    def _look_at_list(self, join: Join, entity: int) -> None:
        if (join.id, entity) in self._lists_seen:
            return
        self._lists_seen.add((join.id, entity))
        members = self._mb.lineage.members(join.child, entity)
        missing = self._mb.items.gaps.get((join.id, entity), ())
        self.found.update((join.child, members[ordinal]) for ordinal in missing)
        self.look_at_members(join.child, entity)
        if not any(self._wiring.may_have_gaps[source] for source in join.sources):
            return
        for member in members:
            if not self._values.member_failed(join, member):
                for source in join.sources:
                    self.look_at(source, member)

    def _outcome(self, port: int, entity: int) -> int:
        return self._mb.items.outcome[port][entity]
