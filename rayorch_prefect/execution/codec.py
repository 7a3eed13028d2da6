"""Values to bytes and back: chunks, and the parts that address them.

Consecutive stored values are pickled together as a *chunk*, cut where values are released apart
(a pickle a row would cost more than everything else). Large chunks keep their buffers out of
band, so that arrays are read from Ray's shared memory without a copy (and are read-only there).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import cloudpickle
import numpy as np

from rayorch_prefect.model.members import Members
from rayorch_prefect.model.parts import Part, Parts

# Above this many bytes a chunk is stored by itself and does not pass through the driver.
LARGE_CHUNK = 64 * 1024

# A pickle and its out-of-band buffers.
LargeChunk: TypeAlias = tuple[Any, list[Any]]


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """`n` values; exactly one of `small` and `large` is there."""

    n: int
    small: bytes | None
    large: LargeChunk | None
    size: int


class _NotPlain(Exception):
    pass


class _PlainPickler(pickle.Pickler):
    """Pickles built-in types only, twice as fast as the pickler that can do all."""

    def reducer_override(self, value: Any) -> Any:
        raise _NotPlain


def _plain(values: Sequence[Any]) -> bytes | None:
    """Their pickle, or None if something else than built-in types is among them."""
    out = io.BytesIO()
    try:
        _PlainPickler(out, protocol=5).dump(list(values))
    except _NotPlain:
        return None
    return out.getvalue()


def encode(values: Sequence[Any]) -> EncodedChunk:
    """Pickle values as one chunk. Raises whatever pickling an unpicklable value raises."""
    buffers: list[pickle.PickleBuffer] = []
    data = _plain(values)
    if data is None:
        data = cloudpickle.dumps(list(values), protocol=5, buffer_callback=buffers.append)
    if not buffers and len(data) <= LARGE_CHUNK:
        return EncodedChunk(len(values), data, None, len(data))
    raw = [buffer.raw() for buffer in buffers]
    size = len(data) + sum(view.nbytes for view in raw)
    if size <= LARGE_CHUNK:
        return EncodedChunk(len(values), cloudpickle.dumps(list(values), protocol=5), None, size)
    arrays = [np.frombuffer(view, dtype=np.uint8) for view in raw]
    return EncodedChunk(len(values), None, (np.frombuffer(data, dtype=np.uint8), arrays), size)


def decode(chunk: bytes | LargeChunk) -> list[Any]:
    """The values of a chunk."""
    if isinstance(chunk, bytes):
        values = pickle.loads(chunk)
    else:
        data, buffers = chunk
        values = pickle.loads(memoryview(data), buffers=buffers)
    assert isinstance(values, list)
    return values


def readdress(parts: Parts, pieces: Callable[[int, int], Sequence[tuple[int, int, int]]]) -> Parts:
    """Parts over slots become parts over chunks: ("R", chunk, offset, n).

    `pieces(slot, n)` gives (chunk, offset, n) of each chunk that holds some of the slots.
    """
    found: list[Part] = []
    for part in parts:
        match part[0]:
            case "R":
                found.extend(("R", *piece) for piece in pieces(part[1], part[2]))
            case "L":
                found.append(("L", readdress(part[1], pieces)))
            case "M":
                found.append(("M", readdress(part[1], pieces), part[2], part[3]))
            case "X":
                found.append(("X", readdress((part[1],), pieces)[0], part[2]))
            case _:
                found.append(part)
    return tuple(found)


def one_row(parts: Parts, row: int, chunk: Callable[[int], int]) -> Parts:
    """Row `row` of chunk-addressed parts, its chunks renumbered by `chunk`."""
    for part in parts:
        n = part[3] if part[0] == "R" else part[2] if part[0] == "X" else 1
        if row < n:
            return (_renumbered(_narrowed(part, row), chunk),)
        row -= n
    raise IndexError(row)


def _narrowed(part: Part, row: int) -> Part:
    """One row of a part."""
    if part[0] == "R":
        return ("R", part[1], part[2] + row, 1)
    return cast(Part, part[1]) if part[0] == "X" else part


def _renumbered(part: Part, chunk: Callable[[int], int]) -> Part:
    match part[0]:
        case "R":
            return ("R", chunk(part[1]), *part[2:])
        case "L" | "M":
            return (part[0], tuple(_renumbered(one, chunk) for one in part[1]), *part[2:])
        case "X":
            return ("X", _renumbered(part[1], chunk), part[2])
        case _:
            return part


def rows_of(parts: Parts, chunks: Sequence[list[Any]]) -> list[Any]:
    """The rows that chunk-addressed parts stand for."""
    rows: list[Any] = []
    for part in parts:
        match part[0]:
            case "R":
                _, chunk, offset, n = part
                rows += chunks[chunk][offset : offset + n]
            case "L":
                rows.append(rows_of(part[1], chunks))
            case "M":
                _, inner, ordinals, missing = part
                rows.append(Members(rows_of(inner, chunks), ordinals, missing))
            case "X":
                rows += rows_of((part[1],), chunks) * part[2]
            case _:
                rows.append(part[1])
    return rows
