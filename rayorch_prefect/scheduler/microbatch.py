"""All run state of one microbatch, as one object that goes when its rows are released."""

from __future__ import annotations

from array import array

from rayorch_prefect.model.outcomes import Failure, Outcome
from rayorch_prefect.scheduler.grains import Grains, Phase
from rayorch_prefect.scheduler.items import Cause, Items
from rayorch_prefect.scheduler.lineage import Lineage
from rayorch_prefect.scheduler.wiring import Wiring

UNKNOWN = -1  # a join whose member set is still open


class Microbatch:
    """Tables of one microbatch; written by the scheduler's own modules alone."""

    def __init__(self, wiring: Wiring, number: int, rows: int) -> None:
        self.number = number
        self.rows = rows
        self.wiring = wiring
        self.lineage = Lineage(wiring)
        self.items = Items(len(wiring.domain_of))
        self.grains = Grains(len(wiring.plan.calls))
        self.pending: list[array[int]] = [array("q") for _ in wiring.joins]
        self.completed = bytearray(rows)
        self.released = bytearray(rows)
        self.unreleased = rows
        self.contract: dict[int, Failure] = {}
        self.tries: dict[int, int] = {}
        # Parents that cannot be COMPLETED any more, and why.
        self.doomed: dict[int, Cause] = {}
        for port in wiring.flat_masks:
            self.items.mask[port] = bytearray()
        self.grow(0, rows)
        self.lineage.grow(0, rows)

    def grow(self, domain: int, n: int) -> None:
        """Make room for n more Entities of a Domain in every table but lineage."""
        wiring, items = self.wiring, self.items
        blank = bytes(n)
        for port in wiring.ports_on[domain]:
            items.outcome[port].extend(blank)
            if port in items.mask:
                items.mask[port].extend(blank)
        for call in wiring.calls_on[domain]:
            self.grains.phase[call].extend(blank)
        for join in wiring.joins_into[domain]:
            self.pending[join].extend([UNKNOWN] * n)

    def path(self, domain: int, entity: int) -> tuple[int, ...]:
        """Ordinals from the parent (root Entity) down to the Entity; () at the root."""
        ordinals: list[int] = []
        while domain:
            ordinals.append(self.lineage.ordinal(domain, entity))
            entity = self.lineage.parent[domain][entity]
            above = self.wiring.parent_domain[domain]
            assert above is not None
            domain = above
        return tuple(reversed(ordinals))

    def root_of(self, domain: int, entity: int) -> int:
        """The parent (root Entity) that the Entity descends from."""
        while domain:
            entity = self.lineage.parent[domain][entity]
            above = self.wiring.parent_domain[domain]
            assert above is not None
            domain = above
        return entity

    def roots(self, domain: int, first: int, end: int) -> list[tuple[int, int, int]]:
        """Cut a range of Entities where another parent (root Entity) begins: (row, first, end)."""
        found: list[tuple[int, int, int]] = []
        for _, start, stop in self.groups(domain, first, end):
            row = self.root_of(domain, start)
            if found and found[-1][0] == row:
                found[-1] = (row, found[-1][1], stop)
            else:
                found.append((row, start, stop))
        return found

    def group_of(self, domain: int, entity: int) -> int:
        """The direct parent; at the root each Entity is its own group."""
        return self.lineage.parent[domain][entity] if domain else entity

    def groups(self, domain: int, first: int, end: int) -> list[tuple[int, int, int]]:
        """Cut a range of Entities at group borders: (group, first, end) each."""
        if not domain:
            return [(entity, entity, entity + 1) for entity in range(first, end)]
        parent = self.lineage.parent[domain]
        found: list[tuple[int, int, int]] = []
        while first < end:
            group = parent[first]
            stop = min(end, self.lineage.span_end(domain, group, first))
            found.append((group, first, stop))
            first = stop
        return found

    def judge(self, ports: tuple[int, ...], entity: int) -> tuple[Outcome, Cause | None]:
        """Settling rule 2 for what depends on `ports` at one Entity; PENDING if it must wait."""
        verdict = Outcome.PRESENT
        cause: Cause | None = None
        for port in ports:
            outcome = self.items.outcome[port][entity]
            if outcome == Outcome.PENDING:
                return Outcome.PENDING, None
            if outcome >= Outcome.FAILED:
                if cause is None:
                    cause = self.items.cause[port][entity]
                verdict = Outcome.SUPPRESSED
            elif outcome == Outcome.DROPPED and verdict == Outcome.PRESENT:
                verdict = Outcome.DROPPED
        return verdict, cause

    def ready_run(self, call: int, first: int, end: int, limit: int) -> tuple[int, int] | None:
        """The first run of READY Grains of a Call in a range, at most `limit` long."""
        phase = self.grains.phase[call]
        start = phase.find(Phase.READY, first, end)
        if start < 0:
            return None
        window = phase[start : min(end, start + limit)]
        return start, start + len(window) - len(window.lstrip(b"\x01"))
