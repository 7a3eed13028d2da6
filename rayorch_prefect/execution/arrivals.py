"""Children that come while their batch still runs, on the driver's side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rayorch_prefect.execution.backend import ChunksCame
from rayorch_prefect.execution.blocks import Blocks, Recipe
from rayorch_prefect.execution.codec import one_row
from rayorch_prefect.execution.messages import BatchMessage, ReturnedChunk, RowChunk, RowsReply
from rayorch_prefect.model.events import Bar, ChildrenArrived
from rayorch_prefect.model.parts import Parts
from rayorch_prefect.model.reports import OutputReport, Shape


@dataclass(slots=True, eq=False)
class RowRecipe(Recipe):
    """How one try of one row made the children that have come so far.

    `pieces` are the numbers of children in its chunks, `sizes` of the stored ones by output,
    `shapes` by output the shape of each piece. It grows while the row runs, so that what was
    made again is compared with as much as had been asked for.
    """

    pieces: list[int] = field(default_factory=list[int])
    sizes: list[list[int]] = field(default_factory=list[list[int]])
    shapes: list[list[Shape]] = field(default_factory=list[list[Shape]])

    def message(
        self,
        batch: int,
        bars: tuple[Bar, ...] = (),
        oldest: int = 0,
        large_returns: int = 1,
    ) -> BatchMessage:
        """The row alone, its children in the same pieces."""
        return BatchMessage(
            batch=batch,
            call=self.call,
            rows=1,
            inputs=self.inputs,
            chunks=tuple(block.data for block in self.blocks),
            cuts=(),
            large_returns=1,
            taken=self.taken,
            pieces=tuple(self.pieces),
        )

    def add(self, chunk: RowChunk) -> None:
        """The row has handed over some children more."""
        for index, output in enumerate(chunk.outputs):
            assert output.shapes is not None
            self.sizes[index] += [one.n for one in output.chunks]
            self.shapes[index] += output.shapes
        self.pieces.append(children_in(chunk))

    def misfit(self, reply: RowsReply) -> str | None:
        """What is other than the first time in a way that readers would notice."""
        if reply.failures:
            failure = reply.failures[0]
            return f"its row failed this time: {failure.type}: {failure.message}"
        for output, sizes, shapes in zip(reply.outputs, self.sizes, self.shapes, strict=True):
            found, made = [one.n for one in output.chunks], list(output.shapes or ())
            if not made or found != sizes[: len(found)] or made != shapes[: len(made)]:
                return "its row gave other children this time"
        return None


def children_in(chunk: RowChunk) -> int:
    """How many children a chunk has."""
    shapes = chunk.outputs[0].shapes
    assert shapes is not None
    return shapes[0] if isinstance(shapes[0], int) else len(shapes[0])


class Store(Protocol):
    """What keeps returned chunks: the driver."""

    def chunk_data(self, chunk: ReturnedChunk, large: Sequence[Any]) -> Any:
        """A returned chunk as a block's data."""
        ...


class Arrivals:
    """Puts chunks into the store, and has them told."""

    def __init__(self, blocks: Blocks, store: Store) -> None:
        self._blocks = blocks
        self._store = store

    def told(self, came: ChunksCame, recipe: Recipe | None) -> Iterator[ChildrenArrived]:
        """One event a row; `recipe` is the batch's, None if it has ended."""
        if recipe is None:
            return
        for chunk in came.chunks:
            made = recipe.by_row.get(chunk.row)
            if made is None:
                made = recipe.by_row[chunk.row] = row_recipe(recipe, chunk)
            outputs = tuple(self._outputs(came, chunk, made))
            made.add(chunk)
            yield ChildrenArrived(came.batch, came.worker, chunk.row, chunk.first, outputs)

    def _outputs(
        self, came: ChunksCame, chunk: RowChunk, made: RowRecipe
    ) -> Iterator[OutputReport]:
        for index, output in enumerate(chunk.outputs):
            kept = [(one.n, self._store.chunk_data(one, (came.large,))) for one in output.chunks]
            first = self._blocks.store(kept, made, index, len(made.sizes[index]))
            yield output.report(first)


def row_recipe(recipe: Recipe, chunk: RowChunk) -> RowRecipe:
    """The recipe of one row of a batch: only what that row reads."""
    inputs, used = row_inputs(recipe.inputs, chunk.row)
    outputs = len(chunk.outputs)
    return RowRecipe(
        recipe.call,
        1,
        inputs,
        tuple(recipe.blocks[index] for index in used),
        (),
        taken=((0, chunk.first),) if chunk.first else (),
        sizes=[[] for _ in range(outputs)],
        shapes=[[] for _ in range(outputs)],
    )


def row_inputs(inputs: Sequence[Parts], row: int) -> tuple[tuple[Parts, ...], list[int]]:
    """The parts of one row over the chunks that it reads, and which these are."""
    used: dict[int, int] = {}

    def chunk(at: int) -> int:
        return used.setdefault(at, len(used))

    return tuple(one_row(parts, row, chunk) for parts in inputs), list(used)
