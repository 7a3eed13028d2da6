"""The driver's store: which chunk holds which slot, and when a chunk can go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rayorch_prefect.errors import InternalError
from rayorch_prefect.execution.codec import readdress
from rayorch_prefect.execution.messages import MOST_LARGE_RETURNS, BatchMessage, RowsReply
from rayorch_prefect.execution.rows import SourceRows
from rayorch_prefect.model.events import Bar
from rayorch_prefect.model.parts import Parts


@dataclass(slots=True, eq=False)
class Recipe:
    """How a batch made its values, so that they can be made again.

    `inputs` address `blocks`. `made` is (sizes of chunks, hash of shapes) by output and `failed`
    the rows without values: once it has run, to tell whether it gives the same again. `since` is
    when it left, in the timer's seconds. Where children come in chunks, they are made again by
    the recipes of their rows, in `by_row`; `taken` are the children of earlier tries. It is to go
    `alone`, or `shares` its call to a worker.
    """

    call: int
    rows: int
    inputs: tuple[Parts, ...]
    blocks: tuple[Block, ...]
    cuts: tuple[int, ...]
    since: float = 0.0
    made: tuple[tuple[tuple[int, ...], int], ...] = ()
    failed: frozenset[int] = frozenset()
    in_chunks: bool = False
    taken: tuple[tuple[int, int], ...] = ()
    by_row: dict[int, Any] = field(default_factory=dict[int, Any])
    alone: bool = False
    shares: bool = False

    def message(
        self,
        batch: int,
        bars: tuple[Bar, ...] = (),
        oldest: int = 0,
        large_returns: int = MOST_LARGE_RETURNS,
    ) -> BatchMessage:
        """The batch; once more, it goes without the rows that gave nothing."""
        return BatchMessage(
            batch=batch,
            call=self.call,
            rows=self.rows,
            inputs=self.inputs,
            chunks=tuple(block.data for block in self.blocks),
            cuts=self.cuts,
            large_returns=min(self.rows, large_returns),
            bars=bars,
            oldest=oldest,
            left_out=self.failed,
            in_chunks=self.in_chunks,
            taken=self.taken,
        )

    def ran(self, reply: RowsReply) -> None:
        """Remember what a reply to it was like."""
        self.made, self.failed = _made(reply), frozenset((*reply.failures, *reply.skipped))

    def misfit(self, reply: RowsReply) -> str | None:
        """What is other than the first time in a way that readers would notice."""
        if reply.failures:
            row, failure = min(reply.failures.items())
            return f"row {row} of its batch failed this time: {failure.type}: {failure.message}"
        if _made(reply) != self.made:
            return "its batch gave another number of values this time"
        return None


def _made(reply: RowsReply) -> tuple[tuple[tuple[int, ...], int], ...]:
    return tuple(
        (tuple(chunk.n for chunk in output.chunks), hash(output.shapes)) for output in reply.outputs
    )


@dataclass(slots=True, eq=False)
class Block:
    """A chunk and the slots it holds; `live` values still have a reader.

    `data` is a pickle (bytes), a large chunk, or a `ChunkAddress` of a stored object; None once
    it was released or lost. `place` is the chunk's (output, index) in what `recipe` made; a
    source row's block has no recipe, and keeps a small value for whoever is made from it.
    """

    slot: int
    n: int
    data: Any
    live: int
    recipe: Recipe | SourceRows | None = None
    place: tuple[int, int] = (0, 0)


class Blocks:
    """Owner of stored values. Slots ascend and are never used again."""

    def __init__(self) -> None:
        self._next_slot = 0
        self._starts: list[int] = []
        self._blocks: list[Block | None] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._blocks) - self._dead

    def __iter__(self) -> Iterator[Block]:
        return (block for block in self._blocks if block is not None)

    def store(
        self,
        chunks: Sequence[tuple[int, Any]],
        recipe: Recipe | SourceRows | None = None,
        output: int = 0,
        place: int = 0,
    ) -> int:
        """Keep chunks of (n, data) under consecutive slots, as the recipe's chunks from `place`
        on; returns the first slot."""
        first = self._next_slot
        for index, (n, data) in enumerate(chunks, place):
            if n:
                self._starts.append(self._next_slot)
                block = Block(self._next_slot, n, data, n, recipe, (output, index))
                self._blocks.append(block)
                self._next_slot += n
        return first

    def release(self, slot: int, n: int) -> None:
        """Nothing reads these slots any more."""
        end = slot + n
        while slot < end:
            index, block = self._holding(slot)
            step = min(end, block.slot + block.n) - slot
            block.live -= step
            if block.live < 0:
                raise InternalError(f"slot {slot} was released twice")
            if not block.live:
                self._blocks[index] = None
                self._dead += 1
                block.data = None
            slot += step
        if self._dead > 1024 and self._dead * 2 > len(self._blocks):
            self._compact()

    def _holding(self, slot: int) -> tuple[int, Block]:
        index = bisect_right(self._starts, slot) - 1
        block = self._blocks[index] if index >= 0 else None
        if block is None or slot >= block.slot + block.n:
            raise InternalError(f"slot {slot} is not stored")
        return index, block

    def _compact(self) -> None:
        self._blocks = [block for block in self._blocks if block is not None]
        self._starts = [block.slot for block in self._blocks if block is not None]
        self._dead = 0

    def address(self, inputs: Sequence[Parts]) -> tuple[tuple[Parts, ...], tuple[Block, ...]]:
        """Parts over slots as parts over blocks, and those blocks."""
        chunks: dict[int, int] = {}
        found: list[Block] = []

        def pieces(slot: int, n: int) -> Iterator[tuple[int, int, int]]:
            while n:
                index, block = self._holding(slot)
                offset = slot - block.slot
                step = min(n, block.n - offset)
                if index not in chunks:
                    chunks[index] = len(found)
                    found.append(block)
                yield chunks[index], offset, step
                slot, n = slot + step, n - step

        addressed = tuple(readdress(parts, lambda s, n: list(pieces(s, n))) for parts in inputs)
        return addressed, tuple(found)
