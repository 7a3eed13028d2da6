"""The fixed point: what settles because something else has.

Work is a queue of settled ranges (Port, first, end). Each sets off the reactions that the wiring
names; these settle further Items until nothing follows any more. A range whose Items are all
PRESENT is handled by slices; Entities are looked at one by one only where something is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from rayorch_prefect.model.events import Bar
from rayorch_prefect.model.outcomes import TOO_MANY_GAPS, Outcome
from rayorch_prefect.model.reports import OutputReport
from rayorch_prefect.program.plan import Call, CoalesceOp, FilterOp, OnFailure
from rayorch_prefect.scheduler.chunks import OpenMembers
from rayorch_prefect.scheduler.doom import unfinished
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.items import Cause
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.values import Values
from rayorch_prefect.scheduler.wiring import Join, Reaction, Release, Wiring


class Outlet(Protocol):
    """Where the fixed point tells what follows outside of one microbatch's tables."""

    def grains_ready(self, call: int, microbatch: int, first: int, end: int) -> None:
        """Grains have become READY."""

    def grains_suppressed(self, call: int, n: int, ready: int = 0, doomed: int = 0) -> None:
        """Grains have ended without a result, `ready` of them while they were READY, `doomed` of
        them as their parent is."""

    def parents_doomed(self, microbatch: Microbatch) -> None:
        """Parents cannot be COMPLETED any more; all of their Grains have ended."""

    def barred(self, bar: Bar, worker: int) -> None:
        """A Call is barred under a parent, as `worker` has reported."""

    def bar_unknown(self, worker: int, bar: Bar) -> None:
        """A worker skipped a row for a bar that does not hold."""

    def values_arrived(self, call: int, outputs: Sequence[OutputReport]) -> None:
        """Values of Grains that still run are stored."""

    def release(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Stored values have had their last reader."""

    def parent_ended(self, microbatch: Microbatch, row: int) -> None:
        """All outputs of a parent are terminal."""


class FixedPoint:
    """Settles Items of one microbatch; the only writer of its outcomes and member sets."""

    def __init__(self, wiring: Wiring, microbatch: Microbatch, outlet: Outlet) -> None:
        self._wiring = wiring
        self._mb = microbatch
        self._items = microbatch.items
        self._outlet = outlet
        self._values = Values(microbatch)
        self._open = OpenMembers(wiring, microbatch)
        self._work: deque[tuple[int, int, int]] = deque()
        self._dooms = wiring.dooms
        self._newly_doomed: list[int] = []
        self._react = {
            Reaction.CALL: self._on_call_input,
            Reaction.FILTER: self._on_filter_input,
            Reaction.COALESCE: self._on_coalesce_input,
            Reaction.BROADCAST: self._on_broadcast_source,
            Reaction.EXPAND: self._on_expand_source,
            Reaction.REDUCE: self._on_member,
            Reaction.OUTPUT: self._on_output,
            Reaction.RELEASE: self._on_read,
        }

    # -- settling ------------------------------------------------------------------------------

    def present(self, port: int, first: int, end: int) -> None:
        """A range of pending Items becomes PRESENT."""
        if first < end:
            self._items.settle(port, first, end, Outcome.PRESENT)
            self._work.append((port, first, end))

    def settle_one(self, port: int, entity: int, outcome: Outcome, cause: Cause | None) -> None:
        """One pending Item becomes terminal."""
        self._items.outcome[port][entity] = outcome
        if cause is not None:
            self._items.cause[port][entity] = cause
            if cause[1] <= self._dooms[port]:
                self.doom(self._mb.root_of(self._wiring.domain_of[port], entity), cause)
        work = self._work
        if work and work[-1][0] == port and work[-1][2] == entity:
            work[-1] = (port, work[-1][1], entity + 1)
        else:
            work.append((port, entity, entity + 1))

    def end_grain(self, call: int, entity: int, outcome: Outcome, cause: Cause | None) -> None:
        """A Grain ends without a value: all its outputs settle alike."""
        self._mb.grains.phase[call][entity] = Phase.ENDED
        for port in self._wiring.plan.calls[call].outputs:
            self.settle_one(port, entity, outcome, cause)

    def doom(self, row: int, cause: Cause) -> None:
        """A parent cannot be COMPLETED any more."""
        if row not in self._mb.doomed:
            self._mb.doomed[row] = (cause[0], 0)
            self._newly_doomed.append(row)

    def run(self) -> None:
        """React until nothing follows; then what is left of doomed parents is suppressed."""
        self._react_to_all()
        while self._newly_doomed:
            rows, self._newly_doomed = self._newly_doomed, []
            for row in rows:
                for call, entity in unfinished(self._mb, row):
                    self._suppress_grain(call, entity, self._mb.doomed[row], doomed=1)
            self._outlet.parents_doomed(self._mb)
            self._react_to_all()

    def _react_to_all(self) -> None:
        work, react, reactions = self._work, self._react, self._wiring.reactions
        while work:
            port, first, end = work.popleft()
            for reaction, number in reactions[port]:
                react[reaction](number, port, first, end)

    # -- reactions -----------------------------------------------------------------------------

    def _on_call_input(self, number: int, port: int, first: int, end: int) -> None:
        call = self._wiring.plan.calls[number]
        grains = self._mb.grains
        if grains.all_in(number, Phase.WAITING, first, end) and all(
            self._items.all_present(source, first, end) for source in call.inputs
        ):
            self._make_ready(number, first, end)
            return
        phase = grains.phase[number]
        for entity in range(first, end):
            if phase[entity] != Phase.WAITING:
                continue
            outcome, cause = self._mb.judge(call.inputs, entity)
            if outcome == Outcome.PRESENT:
                self._make_ready(number, entity, entity + 1)
            elif outcome != Outcome.PENDING:
                self.end_grain(number, entity, outcome, cause)
                self._outlet.grains_suppressed(number, int(outcome == Outcome.SUPPRESSED))

    def _make_ready(self, call: int, first: int, end: int) -> None:
        if self._mb.doomed:
            self._make_ready_apart(call, first, end)
            return
        self._mb.grains.move(call, first, end, Phase.READY)
        self._outlet.grains_ready(call, self._mb.number, first, end)

    def _make_ready_apart(self, call: int, first: int, end: int) -> None:
        """The Grains of doomed parents are suppressed in place of becoming READY."""
        for row, start, stop in self._mb.roots(self._wiring.plan.calls[call].domain, first, end):
            cause = self._mb.doomed.get(row)
            if cause is None:
                self._mb.grains.move(call, start, stop, Phase.READY)
                self._outlet.grains_ready(call, self._mb.number, start, stop)
                continue
            for entity in range(start, stop):
                self._suppress_grain(call, entity, cause, doomed=1)

    def _on_filter_input(self, number: int, port: int, first: int, end: int) -> None:
        op = self._wiring.plan.ports[number].op
        assert isinstance(op, FilterOp)
        outcomes = self._items.outcome[number]
        for entity in range(first, end):
            if outcomes[entity] != Outcome.PENDING:
                continue
            outcome, cause = self._mb.judge((op.source, op.mask), entity)
            if outcome == Outcome.PRESENT and not self._values.mask(op.mask, entity):
                outcome = Outcome.DROPPED
            if outcome != Outcome.PENDING:
                self.settle_one(number, entity, outcome, cause)

    def _on_coalesce_input(self, number: int, port: int, first: int, end: int) -> None:
        op = self._wiring.plan.ports[number].op
        assert isinstance(op, CoalesceOp)
        outcomes = self._items.outcome[number]
        for entity in range(first, end):
            if outcomes[entity] != Outcome.PENDING:
                continue
            found = [self._items.outcome[source][entity] for source in op.sources]
            if Outcome.PENDING in found:
                continue
            if Outcome.PRESENT in found:
                self.settle_one(number, entity, Outcome.PRESENT, None)
            else:
                outcome, cause = self._mb.judge(op.sources, entity)
                self.settle_one(number, entity, outcome, cause)

    def _on_broadcast_source(self, number: int, port: int, first: int, end: int) -> None:
        domain = self._wiring.domain_of[number]
        for parent in range(first, end):
            for first_member, end_member in self._mb.lineage.spans(domain, parent):
                # The source's own reaction may still be queued when its new members have seen it.
                for start, stop in self._open.pending(number, first_member, end_member):
                    self._broadcast_to(number, port, parent, start, stop)

    def _broadcast_to(self, number: int, source: int, parent: int, first: int, end: int) -> None:
        outcome = self._items.outcome[source][parent]
        if outcome == Outcome.PRESENT:
            self.present(number, first, end)
        elif outcome != Outcome.PENDING:
            verdict, cause = self._mb.judge((source,), parent)
            for entity in range(first, end):
                self.settle_one(number, entity, verdict, cause)

    def _on_expand_source(self, domain: int, port: int, first: int, end: int) -> None:
        expands = self._wiring.plan.domains[domain].expands
        sources = tuple(self._wiring.expand_source(expand) for expand in expands)
        opened: list[tuple[int, int, int]] = []
        for parent in range(first, end):
            if not self._mb.lineage.is_open(domain, parent):
                continue
            outcome, cause = self._mb.judge(sources, parent)
            if outcome == Outcome.PRESENT:
                n = self._values.length(sources[0], parent)
                opened.append((parent, *self._open_members(domain, parent, n)))
            elif outcome != Outcome.PENDING:
                self._no_members(domain, parent, outcome, cause)
        self._settle_new_members(domain, opened)

    def _open_members(self, domain: int, parent: int, n: int) -> tuple[int, int]:
        """Close a member set with n members in all; the range of the new ones."""
        if self._wiring.chunked[domain]:
            return self._open.close(domain, parent, n)
        start = self._mb.lineage.admit(domain, parent, n)
        self._mb.grow(domain, n)
        for number in self._wiring.joins_from[domain]:
            self._mb.pending[number][parent] = n * len(self._wiring.joins[number].sources)
        return start, start + n

    def members_arrived(self, call: Call, parent: int, n: int) -> None:
        """A Grain of `call` that still runs has made n children more (at least one)."""
        for domain in call.chunked:
            first = self._open.arrive(domain, parent, n)
            self._settle_new_members(domain, [(parent, first, first + n)])

    def _settle_new_members(self, domain: int, opened: list[tuple[int, int, int]]) -> None:
        """New Entities see their elements and what was broadcast before they were there."""
        if not opened:
            return
        if self._wiring.chunked[domain]:
            for barred in (one for new in opened for one in self._open.barred(domain, *new)):
                self._suppress_grain(*barred)
        for expand in self._wiring.plan.domains[domain].expands:
            self.present(expand, opened[0][1], opened[-1][2])
        for source, port in self._wiring.broadcasts_into[domain]:
            for parent, first, end in opened:
                if first < end:
                    self._broadcast_to(port, source, parent, first, end)
        for parent, first, end in opened:
            if first == end:
                self._fire_if_ended(domain, parent)

    def _fire_if_ended(self, domain: int, parent: int) -> None:
        for number in self._wiring.joins_from[domain]:
            if not self._mb.pending[number][parent]:
                self._fire(self._wiring.joins[number], parent)

    def _suppress_grain(self, call: int, entity: int, cause: Cause, doomed: int = 0) -> None:
        ready = self._mb.grains.phase[call][entity] == Phase.READY
        self._outlet.grains_suppressed(call, 1, int(ready), doomed)
        self.end_grain(call, entity, Outcome.SUPPRESSED, cause)

    def _no_members(self, domain: int, parent: int, outcome: Outcome, cause: Cause | None) -> None:
        """Settling rule 6: no children, and the matching reduces follow the source."""
        if self._mb.lineage.size[domain][parent]:
            assert cause is not None
            self._suppress_members(domain, parent, cause)
        else:
            self._open_members(domain, parent, 0)
        for number in self._wiring.joins_from[domain]:
            join = self._wiring.joins[number]
            for result in join.results:
                if join.on_failure is None:
                    self.settle_one(result, parent, Outcome.PRESENT, None)
                else:
                    self.settle_one(result, parent, outcome, cause)

    def _suppress_members(self, domain: int, parent: int, cause: Cause) -> None:
        """Failure rule 8: the Grain failed for good after these had arrived."""
        self._open.fail(domain, parent)
        for call, entity in self._open.unfinished(domain, parent):
            self._suppress_grain(call, entity, cause)
        for port, entity in self._open.unseen(domain, parent):
            self.settle_one(port, entity, Outcome.SUPPRESSED, cause)

    def _on_member(self, number: int, port: int, first: int, end: int) -> None:
        join = self._wiring.joins[number]
        pending = self._mb.pending[number]
        for parent, start, stop in self._mb.groups(join.child, first, end):
            pending[parent] -= stop - start
            if not pending[parent]:
                self._fire(join, parent)

    def _fire(self, join: Join, parent: int) -> None:
        """Settling rule 3: all members are terminal."""
        outcome, cause = Outcome.PRESENT, None
        if join.on_failure is not None and not all(
            self._items.all_present(source, first, end)
            for first, end in self._mb.lineage.spans(join.child, parent)
            for source in join.sources
        ):
            outcome, cause = self._reduce_failed(join, parent)
        if join.on_failure is not None and outcome == Outcome.PRESENT:
            self._items.members[join.id, parent] = self._values.find_members(join, parent)
        for result in join.results:
            self.settle_one(result, parent, outcome, cause)

    def _reduce_failed(self, join: Join, parent: int) -> tuple[Outcome, Cause | None]:
        """Settling rules 3 to 5 where some member is not PRESENT."""
        members = self._mb.lineage.members(join.child, parent)
        failed = [entity for entity in members if self._values.member_failed(join, entity)]
        if not failed:
            return Outcome.PRESENT, None
        depth = self._wiring.depth[join.domain]
        causes = [self._member_cause(join, entity) for entity in failed]
        failure, scope = causes[0]
        as_fail = Outcome.SUPPRESSED, (failure, min(depth, scope))
        if join.on_failure is OnFailure.FAIL or any(scope <= depth for _, scope in causes):
            return as_fail
        if join.on_failure is OnFailure.KEEP:
            return Outcome.PRESENT, None
        left = len(self._values.find_members(join, parent))
        if not left:
            return as_fail
        if _too_many(join.max_missing, len(failed), left):
            message = (
                f"{len(failed)} of {left + len(failed)} members failed, "
                f"max_missing={join.max_missing}; the first: {failure.type}: {failure.message}"
            )
            gaps = replace(failure, type=TOO_MANY_GAPS, message=message)
            return Outcome.SUPPRESSED, (gaps, min(depth, scope))
        ordinal = self._mb.lineage.ordinal
        missing = tuple(ordinal(join.child, entity) for entity in failed)
        self._items.gaps[join.id, parent] = missing
        return Outcome.PRESENT, None

    def _member_cause(self, join: Join, entity: int) -> Cause:
        _, cause = self._mb.judge(join.sources, entity)
        assert cause is not None
        return cause

    def _on_output(self, number: int, port: int, first: int, end: int) -> None:
        outputs = self._wiring.output_at_root
        for row in range(first, end):
            if self._mb.completed[row]:
                continue
            if all(self._items.outcome[output][row] for output in outputs):
                self._mb.completed[row] = 1
                self._outlet.parent_ended(self._mb, row)

    # -- the last reader -----------------------------------------------------------------------

    def _on_read(self, number: int, port: int, first: int, end: int) -> None:
        release = self._wiring.releases[number]
        outcomes = [self._items.outcome[wait] for wait in release.waits]
        if not any(outcome.count(Outcome.PENDING, first, end) for outcome in outcomes):
            self._release(release, release.domain, first, end)
            return
        for entity in range(first, end):
            if all(outcome[entity] for outcome in outcomes):
                self._release(release, release.domain, entity, entity + 1)

    def _release(self, release: Release, domain: int, first: int, end: int) -> None:
        """Let go of the origin's values at and below a range of Entities."""
        origin = self._wiring.domain_of[release.origin]
        if domain == origin:
            self._release_here(release.origin, first, end)
            return
        below = origin
        while self._wiring.parent_domain[below] != domain:
            above = self._wiring.parent_domain[below]
            assert above is not None
            below = above
        for entity in range(first, end):
            if below == origin and not self._wiring.list_depth[release.origin]:
                self._outlet.release(self._items.take_group(release.origin, entity))
                continue
            for low, high in self._mb.lineage.spans(below, entity):
                self._release(release, below, low, high)

    def _release_here(self, origin: int, first: int, end: int) -> None:
        if self._wiring.list_depth[origin]:
            for entity in range(first, end):
                self._outlet.release(self._items.take_list(origin, entity))
            return
        domain = self._wiring.domain_of[origin]
        for group, start, stop in self._mb.groups(domain, first, end):
            self._outlet.release(self._items.take(origin, group, start, stop))


def _too_many(limit: int | float | None, failed: int, left: int) -> bool:
    if limit is None:
        return False
    if isinstance(limit, float):
        # Divided, as 29 of 100 is the float 0.29, but 0.29 * 100 is less than 29.
        return failed / (failed + left) > limit
    return failed > limit
