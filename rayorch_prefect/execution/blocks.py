"""The driver's store: which chunk holds which slot, and when a chunk can go."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch_prefect.errors import InternalError
from rayorch_prefect.execution.codec import readdress
from rayorch_prefect.model.parts import Parts


@dataclass(slots=True)
class Block:
    """A chunk and the slots it holds; `live` values still have a reader.

    `data` is a pickle (bytes), a large chunk, or a `ChunkAddress` of a stored object.
    """

    slot: int
    n: int
    data: Any
    live: int


class Blocks:
    """Owner of stored values. Slots ascend and are never used again."""

    def __init__(self) -> None:
        self._next_slot = 0
        self._starts: list[int] = []
        self._blocks: list[Block | None] = []
        self._dead = 0

    def __len__(self) -> int:
        return len(self._blocks) - self._dead

    def store(self, chunks: Sequence[tuple[int, Any]]) -> int:
        """Keep chunks of (n, data) under consecutive slots; returns the first slot."""
        first = self._next_slot
        for n, data in chunks:
            if n:
                self._starts.append(self._next_slot)
                self._blocks.append(Block(self._next_slot, n, data, n))
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

    def address(self, inputs: Sequence[Parts]) -> tuple[tuple[Parts, ...], tuple[Any, ...]]:
        """Parts over slots as parts over chunks, and the data of those chunks."""
        chunks: dict[int, int] = {}
        data: list[Any] = []

        def pieces(slot: int, n: int) -> Iterator[tuple[int, int, int]]:
            while n:
                index, block = self._holding(slot)
                offset = slot - block.slot
                step = min(n, block.n - offset)
                if index not in chunks:
                    chunks[index] = len(data)
                    data.append(block.data)
                yield chunks[index], offset, step
                slot, n = slot + step, n - step

        addressed = tuple(readdress(parts, lambda s, n: list(pieces(s, n))) for parts in inputs)
        return addressed, tuple(data)
