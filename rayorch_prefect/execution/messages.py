"""What the driver and a worker send each other: one message a batch each way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rayorch_prefect.model.events import Bar
from rayorch_prefect.model.parts import Parts
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    OutputReport,
    RowFailure,
    Shape,
)

MOST_LARGE_RETURNS = 8


@dataclass(frozen=True, slots=True)
class CallContract:
    """What a worker must know of a Call to check and cut its outputs."""

    stage: str
    list_depths: tuple[int, ...]
    masks: tuple[bool, ...]
    chunk_rows: int
    chunked: bool = False


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """A batch for a worker. `inputs` address `chunks`, which are pickles or references to
    stored objects with a position in each (see `ChunkAddress`). `bars[i]` is the bar that would
    skip the rows from `cuts[i-1]` to `cuts[i]`; none at the root. Rows `left_out` do not start.
    Large chunks go back by `large_returns` returns of their own; with 0, in a second call.

    `in_chunks`: the children are handed over while the batch runs; of a row in `taken` (row, n)
    the first n are not wanted. `pieces` are the numbers of children in the chunks that the one
    row has to make again after those."""

    batch: int
    call: int
    rows: int
    inputs: tuple[Parts, ...]
    chunks: tuple[Any, ...]
    cuts: tuple[int, ...]
    large_returns: int
    bars: tuple[Bar, ...] = ()
    oldest: int = 0
    left_out: frozenset[int] = frozenset()
    in_chunks: bool = False
    taken: tuple[tuple[int, int], ...] = ()
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A worker has built its stage. `marker` is where its node can read which row it is at."""

    node: str
    marker: str | None


@dataclass(frozen=True, slots=True)
class ChunkAddress:
    """Chunk `position` of a stored object that holds several."""

    ref: Any
    position: int


class ReturnedChunk(NamedTuple):
    """`n` values: their pickle, or where they are among the large returns, and their bytes."""

    n: int
    data: bytes | None
    large_return: int = -1
    position: int = 0
    large_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReturnedOutput:
    """One output of a batch, as `OutputReport` but with the stored chunks.

    A large chunk is let go as a whole, small ones are not told apart.
    """

    chunks: tuple[ReturnedChunk, ...]
    shapes: tuple[Shape, ...] | None
    mask: bytes | None

    @property
    def slots(self) -> int:
        """How many values are stored."""
        return sum(chunk.n for chunk in self.chunks)

    def report(self, first_slot: int) -> OutputReport:
        """What the scheduler is told of it."""
        return OutputReport(first_slot, self.slots, self.shapes, self.mask, self._sizes())

    def _sizes(self) -> tuple[tuple[int, int, bool], ...]:
        found: list[tuple[int, int, bool]] = []
        n = size = 0
        for chunk in self.chunks:
            if chunk.data is not None:
                n += chunk.n
                size += len(chunk.data)
                continue
            if n:
                found.append((n, size, True))
                n = size = 0
            found.append((chunk.n, chunk.large_bytes, False))
        return (*found, (n, size, True)) if n else tuple(found)


@dataclass(frozen=True, slots=True)
class RowsReply:
    """The stage returned. `resident_mb` is the worker's own memory, where it matters.
    `large_bytes` is the size of its large chunks, 0 if there are none; `left_behind` returns of
    them wait at the worker to be collected. By `unfit` the worker is to be replaced when it has
    done what it holds."""

    rows: int
    outputs: tuple[ReturnedOutput, ...]
    failures: Mapping[int, RowFailure]
    large_bytes: int
    skipped: tuple[int, ...] = ()
    busy_s: float = 0.0
    resident_mb: int = 0
    unfit: bool = False
    left_behind: int = 0

    @property
    def large_returns(self) -> list[int]:
        """The large returns that hold something."""
        chunks = (chunk for output in self.outputs for chunk in output.chunks)
        return sorted({chunk.large_return for chunk in chunks if chunk.data is None})


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Children of one row, from ordinal `first` on; each output describes that row alone."""

    row: int
    first: int
    outputs: tuple[ReturnedOutput, ...]


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The batch was taken back before it started; whoever asked has been told."""


@dataclass(frozen=True, slots=True)
class InputsLost:
    """The batch did not start: these of the message's `chunks` are lost with their node."""

    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Portion:
    """What a batch hands over in one go: chunks of rows, and at last its reply, which has no
    values then. Large chunks follow as one stored object if there is one."""

    chunks: tuple[RowChunk, ...]
    end: InputsLost | RowsReply | AttemptFailed | ContractBreach | None
    large: bool


class Line(NamedTuple):
    """What a stage logged. `batch` and `row` are -1 where it belongs to none, or to no single one;
    `level` is Python's."""

    batch: int
    row: int
    level: int
    text: str


class LinesTaken(NamedTuple):
    """Lines, and how many were left out by batch. `last`: the worker ends."""

    lines: tuple[Line, ...]
    left_out: tuple[tuple[int, int], ...]
    last: bool


Reply = InputsLost | RowsReply | AttemptFailed | ContractBreach
