"""What there is to do: documents with their numbers of pages, and which pages spoil theirs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rayorch_prefect.errors import UsageError


class Page(Enum):
    """Which page of a poisoned document fails."""

    FIRST = "first"
    RANDOM = "random"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Load:
    """`counts[i]` pages of document i, in order of arrival. Page `poison[i]` of document i is a
    GroupFailure at stage `poisons` ("": the first on pages). `microbatch` documents are admitted at
    once (0: all), and no more than `active` such slices at a time."""

    counts: tuple[int, ...]
    poison: Mapping[int, int] = field(default_factory=dict[int, int])
    poisons: str = ""
    microbatch: int = 0
    active: int = 2

    def __post_init__(self) -> None:
        if not self.counts:
            raise UsageError("there are no documents to simulate")
        if min(self.counts) < 0:
            raise UsageError("a document cannot have fewer than 0 pages")

    @property
    def pages(self) -> int:
        """Of all documents."""
        return sum(self.counts)

    @property
    def siblings(self) -> int:
        """Pages of poisoned documents beside the poisonous ones."""
        return sum(self.counts[document] - 1 for document in self.poison)


def lognormal(
    median: float, sigma: float, documents: int, most: int | None = None, seed: int = 0
) -> tuple[int, ...]:
    """Seeded page counts of at least 1 and at most `most`."""
    pick = random.Random(f"children/{seed}")
    top = math.inf if most is None else most
    drawn = (median * pick.lognormvariate(0.0, sigma) for _ in range(documents))
    return tuple(int(min(top, max(1, round(one)))) for one in drawn)


def scaled(counts: Sequence[float], total: int, most: int) -> tuple[int, ...]:
    """Counts in the same proportion, from 1 to `most`, that add up to `total` exactly.

    Raises UsageError if none do.
    """
    if not len(counts) <= total <= most * len(counts):
        raise UsageError(f"{len(counts)} documents of 1..{most} pages cannot have {total} in all")
    low, high = 0.0, total / min(counts) * most
    for _ in range(80):
        factor = (low + high) / 2
        if sum(_clipped(one * factor, most) for one in counts) < total:
            low = factor
        else:
            high = factor
    found = [_clipped(one * low, most) for one in counts]
    return tuple(_topped_up(found, total, most))


def _clipped(count: float, most: int) -> int:
    return min(most, max(1, round(count)))


def _topped_up(found: list[int], total: int, most: int) -> list[int]:
    """One page more for some, until the sum is right."""
    left, at = total - sum(found), 0
    while left > 0:
        if found[at % len(found)] < most:
            found[at % len(found)] += 1
            left -= 1
        at += 1
    return found


def poisoned(counts: Sequence[int], documents: int, page: Page, seed: int = 0) -> dict[int, int]:
    """The poisonous page of each of the largest `documents`, as in the paper."""
    largest = sorted(range(len(counts)), key=lambda each: (-counts[each], each))[:documents]
    return {each: _which(page, counts[each], f"{seed}/{each}") for each in largest if counts[each]}


def _which(page: Page, count: int, seed: str) -> int:
    if page is Page.RANDOM:
        return random.Random(seed).randrange(count)
    return 0 if page is Page.FIRST else count - 1
