"""Outcomes of Items, and where their values lie.

Outcomes are a byte an Item, in one byte array a Port. Causes are kept only for failures. Stored
values are known by *pieces* (consecutive Entities of one group with consecutive slots), so that
their cost is a piece's and not a Grain's. Pieces of a group are kept sorted and do not overlap.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rayorch_prefect.model.outcomes import Failure, Outcome
from rayorch_prefect.model.reports import Shape

# An Item's cause and the depth of its scope: the scope is the Item's Entity or an ancestor of
# it, so the depth of its Domain tells which.
Cause = tuple[Failure, int]
# Consecutive Entities first..end-1 with their values in slots slot..slot+end-first-1.
Piece = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ListItem:
    """A stored list whose elements have slots of their own.

    `slots` counts them at the deepest level; `inner` is there where elements are lists again.
    `runs` are the (slot, n) of a list that came in chunks which do not follow each other.
    """

    slot: int
    length: int
    slots: int
    inner: tuple[ListItem, ...] | None = None
    mask: bytes | None = None
    runs: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(shape: Shape, slot: int, mask: bytes | None) -> ListItem:
        """From what the worker reported of one row; `mask` has a byte a slot of this row."""
        if isinstance(shape, int):
            return ListItem(slot, shape, shape, None, mask)
        inner: list[ListItem] = []
        used = 0
        for element in shape:
            n = total_slots(element)
            part = None if mask is None else mask[used : used + n]
            inner.append(ListItem.of(element, slot + used, part))
            used += n
        return ListItem(slot, len(shape), used, tuple(inner), mask)

    def stored(self, low: int = 0, high: int | None = None) -> Iterator[tuple[int, int]]:
        """(slot, n) of the stored values from `low` to `high`, counted at the deepest level."""
        high = self.slots if high is None else high
        for slot, n in self.runs or ((self.slot, self.slots),):
            start, end = max(low, 0), min(high, n)
            if start < end:
                yield slot + start, end - start
            low, high = low - n, high - n

    def joined(self, more: ListItem) -> ListItem:
        """This list with the elements of `more` after its own."""
        if not more.length or not self.length:
            return more if more.length else self
        runs = list(self.stored())
        for slot, n in more.stored():
            if runs and sum(runs[-1]) == slot:
                runs[-1] = (runs[-1][0], runs[-1][1] + n)
            else:
                runs.append((slot, n))
        inner = None if self.inner is None else (*self.inner, *(more.inner or ()))
        mask = None if self.mask is None else self.mask + (more.mask or b"")
        slot = runs[0][0] if runs else self.slot
        length, slots = self.length + more.length, self.slots + more.slots
        return ListItem(slot, length, slots, inner, mask, tuple(runs) if len(runs) > 1 else ())


def total_slots(shape: Shape) -> int:
    """How many stored values one row's list has."""
    return shape if isinstance(shape, int) else sum(total_slots(element) for element in shape)


def _first_piece(pieces: list[Piece], entity: int) -> int:
    """Where in sorted pieces the one begins that may hold the Entity."""
    return max(0, bisect_right(pieces, (entity, 1 << 62, 0)) - 1)


class Items:
    """Owner of outcomes, causes and values' addresses in one microbatch."""

    def __init__(self, ports: int) -> None:
        self.outcome = [bytearray() for _ in range(ports)]
        self.cause: list[dict[int, Cause]] = [{} for _ in range(ports)]
        self.pieces: list[dict[int, list[Piece]]] = [{} for _ in range(ports)]
        self.lists: list[dict[int, ListItem]] = [{} for _ in range(ports)]
        self.mask: dict[int, bytearray] = {}
        # Of a reduce (a join's number) at a parent: ordinals left out, and who belongs: a range
        # where all members do.
        self.gaps: dict[tuple[int, int], tuple[int, ...]] = {}
        self.members: dict[tuple[int, int], Sequence[int]] = {}

    # -- values -----------------------------------------------------------------------------

    def place(self, port: int, group: int, first: int, end: int, slot: int) -> None:
        """Entities first..end-1 of one group have their values from `slot` on."""
        insort(self.pieces[port].setdefault(group, []), (first, end, slot))

    def stored(self, port: int, group: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """(slot, n) of the values of Entities first..end-1, in Entity order."""
        pieces = self.pieces[port].get(group, [])
        for at in range(_first_piece(pieces, first), len(pieces)):
            start, stop, slot = pieces[at]
            if start >= end:
                return
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield slot + low - start, high - low

    def take_group(self, port: int, group: int) -> Iterator[tuple[int, int]]:
        """Forget all values of a group; gives their (slot, n)."""
        for start, stop, slot in self.pieces[port].pop(group, ()):
            yield slot, stop - start

    def take(self, port: int, group: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Forget the values of Entities first..end-1; gives their (slot, n)."""
        pieces = self.pieces[port].get(group, [])
        left: list[Piece] = []
        begin = at = _first_piece(pieces, first)
        while at < len(pieces) and pieces[at][0] < end:
            start, stop, slot = pieces[at]
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield slot + low - start, high - low
                if start < low:
                    left.append((start, low, slot))
                if high < stop:
                    left.append((high, stop, slot + high - start))
            else:
                left.append(pieces[at])
            at += 1
        pieces[begin:at] = left
        if not pieces:
            self.pieces[port].pop(group, None)

    def arrived(self, port: int, entity: int) -> int:
        """How many elements of a list are there, of one that arrives in chunks or is whole."""
        item = self.lists[port].get(entity)
        return 0 if item is None else item.length

    def take_list(self, port: int, entity: int) -> Iterator[tuple[int, int]]:
        """Forget a stored list; gives its (slot, n)."""
        item = self.lists[port].pop(entity, None)
        if item is not None:
            yield from item.stored()

    def take_all(self) -> Iterator[tuple[int, int]]:
        """Forget every value; gives their (slot, n)."""
        for port in range(len(self.outcome)):
            for group in list(self.pieces[port]):
                yield from self.take_group(port, group)
            for entity in list(self.lists[port]):
                yield from self.take_list(port, entity)

    # -- outcomes ---------------------------------------------------------------------------

    def all_present(self, port: int, first: int, end: int) -> bool:
        """Whether the Items of Entities first..end-1 are all PRESENT."""
        return self.outcome[port].count(Outcome.PRESENT, first, end) == end - first

    def settle(self, port: int, first: int, end: int, outcome: Outcome) -> None:
        """Write one outcome to a range of pending Items."""
        self.outcome[port][first:end] = bytes((outcome,)) * (end - first)
