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
    """

    slot: int
    length: int
    slots: int
    inner: tuple[ListItem, ...] | None = None
    mask: bytes | None = None

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

    def take_list(self, port: int, entity: int) -> Iterator[tuple[int, int]]:
        """Forget a stored list; gives its (slot, n)."""
        item = self.lists[port].pop(entity, None)
        if item is not None and item.slots:
            yield item.slot, item.slots

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
