"""Who is whose child: dense Entity numbers, a parent's members contiguous.

Entities of one Domain in one microbatch are numbered from 0 as they appear; the id of an Entity
within an Engine is (microbatch, Domain, number). Members of one parent are a range, so an
ordinal is a subtraction.
"""

from __future__ import annotations

from array import array

from rayorch_prefect.scheduler.wiring import Wiring

OPEN = -1  # the member set is not known yet


class Lineage:
    """Owner of Domains' members in one microbatch."""

    def __init__(self, wiring: Wiring) -> None:
        self._children_of = wiring.children_of
        domains = len(wiring.plan.domains)
        self.count = [0] * domains
        self.parent: list[array[int]] = [array("i") for _ in range(domains)]
        self.first: list[array[int]] = [array("q") for _ in range(domains)]
        self.size: list[array[int]] = [array("i") for _ in range(domains)]

    def grow(self, domain: int, n: int) -> None:
        """n more Entities, whose own members are not known yet."""
        self.count[domain] += n
        for child in self._children_of[domain]:
            self.first[child].extend([OPEN] * n)
            self.size[child].extend([0] * n)

    def admit(self, domain: int, parent: int, n: int) -> int:
        """Close the member set of `parent` in `domain` with n members; returns the first."""
        first = self.count[domain]
        self.first[domain][parent] = first
        self.size[domain][parent] = n
        self.parent[domain].extend([parent] * n)
        self.grow(domain, n)
        return first

    def is_open(self, domain: int, parent: int) -> bool:
        """Whether the members of `parent` in `domain` are still unknown."""
        return self.first[domain][parent] == OPEN

    def members(self, domain: int, parent: int) -> tuple[int, int]:
        """(first, end) of the parent's members; empty while open."""
        first = self.first[domain][parent]
        return (0, 0) if first == OPEN else (first, first + self.size[domain][parent])

    def ordinal(self, domain: int, entity: int) -> int:
        """The Entity's place among its parent's members, from 0."""
        return entity - self.first[domain][self.parent[domain][entity]]
