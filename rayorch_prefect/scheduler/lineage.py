"""Who is whose child: dense Entity numbers, a parent's members contiguous.

Entities of one Domain in one microbatch are numbered from 0 as they appear; the id of an Entity
within an Engine is (microbatch, Domain, number). Members of one parent are a range, so an
ordinal is a subtraction. Only where members may arrive in chunks are they several ascending
ranges, as other parents' may arrive between.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from rayorch_prefect.scheduler.wiring import Wiring

OPEN = -1  # the member set is not known yet
_CLOSED = 0

# (first Entity, end, ordinal of the first).
_Span = tuple[int, int, int]


class EveryMember(tuple[int, ...]):
    """All members of a parent in order, where they are not one range."""

    __slots__ = ()


class Lineage:
    """Owner of Domains' members in one microbatch."""

    def __init__(self, wiring: Wiring) -> None:
        self._children_of = wiring.children_of
        domains = len(wiring.plan.domains)
        self.count = [0] * domains
        self.parent: list[array[int]] = [array("i") for _ in range(domains)]
        self.first: list[array[int]] = [array("q") for _ in range(domains)]
        self.size: list[array[int]] = [array("i") for _ in range(domains)]
        # Of Domains with chunks: each parent's spans.
        self._spans: list[dict[int, list[_Span]] | None] = [
            {} if chunked else None for chunked in wiring.chunked
        ]
        self._failed: set[tuple[int, int]] = set()

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
        """Whether the parent may still get members in `domain`."""
        return self.first[domain][parent] == OPEN

    # -- chunks ------------------------------------------------------------------------------

    def arrive(self, domain: int, parent: int, n: int) -> int:
        """n members more of a parent whose member set stays open; returns the first."""
        known = self._spans[domain]
        assert known is not None
        first, before = self.count[domain], self.size[domain][parent]
        spans = known.setdefault(parent, [])
        if spans and spans[-1][1] == first:
            spans[-1] = (spans[-1][0], first + n, spans[-1][2])
        elif n:
            spans.append((first, first + n, before))
        self.size[domain][parent] = before + n
        self.parent[domain].extend([parent] * n)
        self.grow(domain, n)
        return first

    def close(self, domain: int, parent: int, *, failed: bool = False) -> None:
        """No more members come. `failed`: the expansion came to nothing, for good."""
        self.first[domain][parent] = _CLOSED
        if failed:
            self._failed.add((domain, parent))

    def has_failed(self, domain: int, parent: int) -> bool:
        """Whether members arrived of an expansion that failed: it made none."""
        return (domain, parent) in self._failed

    # -- members ------------------------------------------------------------------------------

    def spans(self, domain: int, parent: int) -> Sequence[tuple[int, int]]:
        """The ranges (first, end) of the parent's members, in order; none is empty."""
        known = self._spans[domain]
        if known is not None:
            return [(first, end) for first, end, _ in known.get(parent, ())]
        first, n = self.first[domain][parent], self.size[domain][parent]
        return ((first, first + n),) if n else ()

    def members(self, domain: int, parent: int) -> range | EveryMember:
        """The parent's members in order; those that are there already, while open."""
        spans = self.spans(domain, parent)
        if len(spans) > 1:
            return EveryMember(one for span in spans for one in range(*span))
        return range(*spans[0]) if spans else range(0)

    def span_end(self, domain: int, parent: int, entity: int) -> int:
        """Where the range of the parent's members ends that the Entity is in."""
        known = self._spans[domain]
        if known is None:
            return self.first[domain][parent] + self.size[domain][parent]
        return _at(known[parent], entity)[1]

    def ordinal(self, domain: int, entity: int) -> int:
        """The Entity's place among its parent's members, from 0."""
        parent = self.parent[domain][entity]
        known = self._spans[domain]
        if known is None:
            return entity - self.first[domain][parent]
        first, _, before = _at(known[parent], entity)
        return entity - first + before


def _at(spans: list[_Span], entity: int) -> _Span:
    return spans[bisect_right(spans, (entity, 1 << 62, 0)) - 1]
