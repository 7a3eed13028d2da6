"""Addresses of values: how the scheduler says which values a row is made of.

A *slot* is the number of one stored value. Slots are given out by the execution layer, ascending
and never used again; consecutive rows of one output have consecutive slots. Parts are plain
tuples, as they cross processes by the thousand:

("R", slot, n)                       n rows, their values in slots slot .. slot+n-1
("L", parts)                         one row, a list made of the parts' rows
("M", parts, ordinals, missing)      one row, `Members`; ordinals None means 0, 1, 2, ...
("X", part, n)                       n rows, each the one row of `part`
("F", KeptFailure)                   one row, a kept failure
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from rayorch_prefect.model.members import KeptFailure

Part: TypeAlias = tuple[Any, ...]
Parts: TypeAlias = tuple[Part, ...]


def values_at(slot: int, n: int) -> Part:
    """n consecutive stored values."""
    return ("R", slot, n)


def plain_list(parts: Iterable[Part]) -> Part:
    """One row: a plain list, as a stage returned it."""
    return ("L", tuple(parts))


def member_list(
    parts: Iterable[Part], ordinals: tuple[int, ...] | None, missing: tuple[int, ...]
) -> Part:
    """One row: what a reduce gives."""
    return ("M", tuple(parts), ordinals, missing)


def repeated(part: Part, n: int) -> Part:
    """n rows that are all the same value."""
    return ("X", part, n)


def kept(failure: KeptFailure) -> Part:
    """One row: the failure in a failed member's place."""
    return ("F", failure)


def append(parts: list[Part], part: Part) -> None:
    """Append `part`, joined to the last one where the slots go on."""
    if part[0] == "R" and parts:
        last = parts[-1]
        if last[0] == "R" and last[1] + last[2] == part[1]:
            parts[-1] = ("R", last[1], last[2] + part[2])
            return
    parts.append(part)


def extend(parts: list[Part], more: Iterable[Part]) -> None:
    """Append all of `more`, joining neighbours."""
    for part in more:
        append(parts, part)


def stored_ranges(parts: Iterable[Part]) -> Iterator[tuple[int, int]]:
    """All (slot, n) that the parts read, nested ones too."""
    for part in parts:
        tag = part[0]
        if tag == "R":
            yield part[1], part[2]
        elif tag in ("L", "M"):
            yield from stored_ranges(part[1])
        elif tag == "X":
            yield from stored_ranges((part[1],))
