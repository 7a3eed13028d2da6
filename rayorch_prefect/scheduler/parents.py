"""A parent's outcome, once all its outputs are terminal."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from rayorch_prefect.model.events import ParentCompleted
from rayorch_prefect.model.outcomes import Failure, Gap, Outcome, ParentOutcome
from rayorch_prefect.model.parts import Parts
from rayorch_prefect.scheduler.gaps import GapSearch
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.values import Values
from rayorch_prefect.scheduler.wiring import Wiring


class ParentState(StrEnum):
    """A parent on its way to its owner."""

    OPEN = "OPEN"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DROPPED = "DROPPED"
    RELEASED = "RELEASED"
    FORGOTTEN = "FORGOTTEN"


_S = ParentState
MOVES = {
    (_S.OPEN, _S.COMPLETED): "all its outputs are terminal, and none failed",
    (_S.OPEN, _S.FAILED): "an output is FAILED or SUPPRESSED, or the program broke its contract",
    (_S.OPEN, _S.DROPPED): "all its outputs on the root are DROPPED",
    (_S.COMPLETED, _S.RELEASED): "its owner has taken over what it wants",
    (_S.FAILED, _S.RELEASED): "its owner knows",
    (_S.DROPPED, _S.RELEASED): "its owner knows",
    (_S.OPEN, _S.FORGOTTEN): "its microbatch is abandoned",
    (_S.COMPLETED, _S.FORGOTTEN): "its microbatch is abandoned",
    (_S.FAILED, _S.FORGOTTEN): "its microbatch is abandoned",
    (_S.DROPPED, _S.FORGOTTEN): "its microbatch is abandoned",
}
"""What moves a parent in the scheduler."""


def state_of(wiring: Wiring, mb: Microbatch, row: int) -> ParentState:
    """Where a parent of an active microbatch is."""
    if mb.released[row]:
        return ParentState.RELEASED
    return ParentState(_judge(wiring, mb, row)[0].value) if mb.completed[row] else ParentState.OPEN


def completed_parent(wiring: Wiring, mb: Microbatch, row: int) -> ParentCompleted:
    """What the owner of the microbatch is told of one parent."""
    outcome, cause, gaps = verdict(wiring, mb, row)
    values = Values(mb)
    done = outcome is ParentOutcome.COMPLETED
    ports = wiring.plan.output_ports
    return ParentCompleted(
        microbatch=mb.number,
        row=row,
        outcome=outcome,
        cause=cause,
        gaps=gaps,
        children=_descendants(wiring, mb, 0, row),
        attempts=mb.tries.get(row, 1),
        outputs=tuple(_output(wiring, mb, values, port, row) for port in ports) if done else (),
    )


def verdict(
    wiring: Wiring, mb: Microbatch, row: int
) -> tuple[ParentOutcome, Failure | None, tuple[Gap, ...]]:
    """The outcome of a parent that has ended, its cause and its gaps."""
    outcome, cause = _judge(wiring, mb, row)
    return outcome, cause, _gaps(wiring, mb, row) if outcome is ParentOutcome.COMPLETED else ()


def _judge(wiring: Wiring, mb: Microbatch, row: int) -> tuple[ParentOutcome, Failure | None]:
    if row in mb.contract:
        return ParentOutcome.FAILED, mb.contract[row]
    _, cause = mb.judge(tuple(wiring.output_at_root), row)
    if cause is not None:
        return ParentOutcome.FAILED, cause[0]
    on_root = [port for port in wiring.plan.output_ports if not wiring.domain_of[port]]
    if on_root and all(mb.items.outcome[port][row] == Outcome.DROPPED for port in on_root):
        return ParentOutcome.DROPPED, None
    return ParentOutcome.COMPLETED, None


def _output(wiring: Wiring, mb: Microbatch, values: Values, port: int, row: int) -> Parts:
    """One row, or none where an output on the root is DROPPED beside others that are not."""
    if not wiring.domain_of[port] and mb.items.outcome[port][row] != Outcome.PRESENT:
        return ()
    return tuple(values.output_parts(port, row))


def _gaps(wiring: Wiring, mb: Microbatch, row: int) -> tuple[Gap, ...]:
    if not any(wiring.may_have_gaps):
        return ()
    search = GapSearch(mb)
    for port in wiring.plan.output_ports:
        domain = wiring.domain_of[port]
        for entity in _under(wiring, mb, domain, row):
            search.look_at(port, entity)
        while (above := wiring.parent_domain[domain]) is not None:
            for entity in _under(wiring, mb, above, row):
                search.look_at_members(domain, entity)
            domain = above
    found = search.found
    found = {gap for gap in found if not any(up in found for up in _above(wiring, mb, *gap))}
    gaps = [
        Gap(
            wiring.plan.domains[domain].name,
            mb.path(domain, entity),
            _cause(wiring, mb, domain, entity),
        )
        for domain, entity in sorted(found)
    ]
    return tuple(gaps)


def _above(wiring: Wiring, mb: Microbatch, domain: int, entity: int) -> Iterator[tuple[int, int]]:
    """(Domain, Entity) of the ancestors, the nearest first."""
    while (above := wiring.parent_domain[domain]) is not None:
        domain, entity = above, mb.lineage.parent[domain][entity]
        yield domain, entity


def _cause(wiring: Wiring, mb: Microbatch, domain: int, entity: int) -> Failure:
    """Why a member was left out: the cause at a reduce that left it out."""
    for number in wiring.joins_from[domain]:
        join = wiring.joins[number]
        parent = mb.lineage.parent[domain][entity]
        if mb.lineage.ordinal(domain, entity) in mb.items.gaps.get((number, parent), ()):
            _, cause = mb.judge(join.sources, entity)
            assert cause is not None
            return cause[0]
    raise AssertionError("a gap without a reduce")


def _under(wiring: Wiring, mb: Microbatch, domain: int, row: int) -> list[int]:
    """Entities of a Domain under a parent."""
    if not domain:
        return [row]
    above = wiring.parent_domain[domain]
    assert above is not None
    return [
        member
        for entity in _under(wiring, mb, above, row)
        for member in mb.lineage.members(domain, entity)
    ]


def _descendants(wiring: Wiring, mb: Microbatch, domain: int, entity: int) -> int:
    """How many Entities there are below one."""
    total = 0
    for child in wiring.children_of[domain]:
        if mb.lineage.has_failed(child, entity):
            continue
        total += mb.lineage.size[child][entity]
        if wiring.children_of[child]:
            members = mb.lineage.members(child, entity)
            total += sum(_descendants(wiring, mb, child, member) for member in members)
    return total
