"""Members that arrive in chunks, before the Grain that makes them has ended.

A member set that is still open keeps its reduces from firing: one is added to their pending
count, and taken off when the set is closed. If the Grain fails for good, the members that have
arrived are suppressed with all that is below them (semantics, Failure 8).
"""

from __future__ import annotations

from collections.abc import Iterator

from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.items import Cause
from rayorch_prefect.scheduler.microbatch import UNKNOWN, Microbatch
from rayorch_prefect.scheduler.wiring import Wiring


class OpenMembers:
    """Writer of the member sets of Domains that are `chunked`."""

    def __init__(self, wiring: Wiring, microbatch: Microbatch) -> None:
        self._wiring = wiring
        self._mb = microbatch

    def arrive(self, domain: int, parent: int, n: int) -> int:
        """n members more; returns the first."""
        first = self._mb.lineage.arrive(domain, parent, n)
        self._mb.grow(domain, n)
        for number in self._wiring.joins_from[domain]:
            pending = self._mb.pending[number]
            if pending[parent] == UNKNOWN:
                pending[parent] = 1
            pending[parent] += n * len(self._wiring.joins[number].sources)
        return first

    def close(self, domain: int, parent: int, n: int) -> tuple[int, int]:
        """The parent has n members in all; the range of those that were not there yet."""
        lineage = self._mb.lineage
        rest = n - lineage.size[domain][parent]
        first = self.arrive(domain, parent, rest)
        lineage.close(domain, parent)
        for number in self._wiring.joins_from[domain]:
            self._mb.pending[number][parent] -= 1
        return first, first + rest

    def fail(self, domain: int, parent: int) -> None:
        """The expansion has come to nothing; its reduces never fire."""
        self.arrive(domain, parent, 0)
        self._mb.lineage.close(domain, parent, failed=True)

    def barred(
        self, domain: int, parent: int, first: int, end: int
    ) -> Iterator[tuple[int, int, Cause]]:
        """(Call, Entity, cause) of new members' Grains whose Call is barred under the parent."""
        for call in self._wiring.calls_on[domain]:
            cause = self._mb.grains.barred[call].get(parent)
            if cause is not None:
                for entity in range(first, end):
                    yield call, entity, cause

    def unfinished(self, domain: int, parent: int) -> Iterator[tuple[int, int]]:
        """(Call, Entity) of the Grains below a parent that have not ended."""
        for first, end in self._mb.lineage.spans(domain, parent):
            for call in self._wiring.calls_on[domain]:
                phase = self._mb.grains.phase[call]
                for entity in range(first, end):
                    if phase[entity] != Phase.ENDED:
                        yield call, entity
            for child in self._wiring.children_of[domain]:
                for entity in range(first, end):
                    yield from self.unfinished(child, entity)

    def unseen(self, domain: int, parent: int) -> Iterator[tuple[int, int]]:
        """(Port, Entity) of the broadcasts into a parent's members that are pending."""
        for first, end in self._mb.lineage.spans(domain, parent):
            for _, port in self._wiring.broadcasts_into[domain]:
                for start, stop in self.pending(port, first, end):
                    for entity in range(start, stop):
                        yield port, entity

    def pending(self, port: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of pending Items of a Port."""
        outcomes = self._mb.items.outcome[port]
        while (start := outcomes.find(Outcome.PENDING, first, end)) >= 0:
            rest = outcomes[start:end]
            first = start + len(rest) - len(rest.lstrip(b"\x00"))
            yield start, first
