"""One batch in a worker: decode the inputs, call the stage, encode what it returned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rayorch_prefect.execution import whereabouts
from rayorch_prefect.execution.bars import Bars, Gate
from rayorch_prefect.execution.children import children_again
from rayorch_prefect.execution.codec import EncodedChunk, LargeChunk, decode, encode, rows_of
from rayorch_prefect.execution.losses import LostValues
from rayorch_prefect.execution.marker import Marker
from rayorch_prefect.execution.messages import (
    MOST_LARGE_RETURNS,
    BatchMessage,
    CallContract,
    ChunkAddress,
    InputsLost,
    Reply,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)
from rayorch_prefect.execution.stage_runner import (
    Column,
    Results,
    StageRunner,
    describe,
    short,
)
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, Shape

# Gets stored objects by their references.
Fetch = Callable[[Sequence[Any]], Sequence[Any]]
# What goes back besides the reply: lists of large chunks.
LargeReturns = list[list[LargeChunk]]


def run_batch(
    runner: StageRunner,
    contract: CallContract,
    message: BatchMessage,
    fetch: Fetch,
    bars: Bars,
    before_start: Callable[[], None] = lambda: None,
    marker: Marker | None = None,
) -> tuple[Reply, LargeReturns]:
    """Run one batch; never raises for what the stage or its values do. There are large returns
    even if the message asks for none.

    `before_start` is called when the inputs are there, before the stage is.
    """
    returns = large_returns(message)
    if marker is not None:
        marker.between_rows(message.batch)
    inputs = read_inputs(message, fetch)
    if not isinstance(inputs, list):
        return inputs, returns
    before_start()
    begin = time.perf_counter()
    if message.pieces:
        results = children_again(runner, contract, message, inputs)
    else:
        gate = Gate(bars, message, marker)
        whereabouts.begin(gate)
        results = runner.run(contract, message.rows, inputs, gate)
        whereabouts.end()
    busy = time.perf_counter() - begin
    if marker is not None:
        marker.between_rows(message.batch)
    if not isinstance(results, Results):
        return results, returns
    return encoded(contract, message, results, returns, busy), returns


def read_inputs(message: BatchMessage, fetch: Fetch) -> list[list[Any]] | Reply:
    """The rows of each input, or why there are none."""
    try:
        chunks = decoded(message.chunks, fetch)
        return [rows_of(parts, chunks) for parts in message.inputs]
    except LostValues as lost:
        return InputsLost(of_lost(message.chunks, lost))
    except Exception as error:
        return AttemptFailed(type(error).__name__, f"reading the inputs: {short(error)}")


def large_returns(message: BatchMessage) -> LargeReturns:
    """Where a batch's large chunks go, even if the message asks for none."""
    wanted = message.large_returns or min(message.rows, MOST_LARGE_RETURNS)
    return [[] for _ in range(wanted)]


def references(chunks: Sequence[Any]) -> list[Any]:
    """The stored objects that chunks lie in, each once."""
    return list({chunk.ref: None for chunk in chunks if isinstance(chunk, ChunkAddress)})


def of_lost(chunks: Sequence[Any], lost: LostValues) -> tuple[int, ...]:
    """Which chunks lie in the stored objects that are lost."""
    refs = references(chunks)
    gone = {refs[position] for position in lost.positions}
    return tuple(
        index
        for index, chunk in enumerate(chunks)
        if isinstance(chunk, ChunkAddress) and chunk.ref in gone
    )


def decoded(chunks: Sequence[Any], fetch: Fetch) -> list[list[Any]]:
    """The values of each chunk; raises what `fetch` raises."""
    refs = references(chunks)
    stored = dict(zip(refs, fetch(refs), strict=True)) if refs else {}
    return [
        decode(stored[chunk.ref][chunk.position] if isinstance(chunk, ChunkAddress) else chunk)
        for chunk in chunks
    ]


def encoded(
    contract: CallContract,
    message: BatchMessage,
    results: Results,
    returns: LargeReturns,
    busy_s: float,
) -> Reply:
    """The results as a reply, large chunks put into `returns`."""
    made = encoded_outputs(contract, message.cuts, results.columns, returns)
    if not isinstance(made, tuple):
        return made
    skipped = tuple(results.skipped)
    return RowsReply(message.rows, made[0], results.failures, made[1], skipped, busy_s)


def encoded_outputs(
    contract: CallContract, cuts: Sequence[int], columns: Sequence[Column], returns: LargeReturns
) -> tuple[tuple[ReturnedOutput, ...], int] | AttemptFailed | ContractBreach:
    """Columns as outputs and the bytes of their large chunks, which go into `returns`."""
    packed = 0
    outputs: list[ReturnedOutput] = []
    large_bytes = 0
    for column in columns:
        chunks: list[ReturnedChunk] = []
        for values in _cut(column, cuts, contract.chunk_rows):
            try:
                chunk = encode(values)
            except MemoryError as error:
                return AttemptFailed("MemoryError", f"packing the results: {short(error)}")
            except Exception as error:
                return _unpicklable(values, error)
            large_bytes += 0 if chunk.large is None else chunk.size
            chunks.append(_placed(chunk, returns, packed))
            packed += chunk.large is not None
        shapes = None if column.shapes is None else tuple(column.shapes)
        mask = None if column.mask is None else bytes(column.mask)
        outputs.append(ReturnedOutput(tuple(chunks), shapes, mask))
    return tuple(outputs), large_bytes


def _unpicklable(values: Sequence[Any], error: Exception) -> ContractBreach:
    """Name the first value that cannot be pickled."""
    for value in values:
        try:
            encode([value])
        except Exception as found:
            received = f"{describe(value)}: {type(found).__name__}: {short(found)}"
            return ContractBreach("values that can be pickled", received)
    return ContractBreach("values that can be pickled", f"{type(error).__name__}: {short(error)}")


def _placed(chunk: EncodedChunk, returns: LargeReturns, packed: int) -> ReturnedChunk:
    """Small chunks go inside the reply; large ones spread over the large returns."""
    if chunk.large is None:
        return ReturnedChunk(chunk.n, chunk.small)
    target = returns[packed % len(returns)]
    target.append(chunk.large)
    return ReturnedChunk(chunk.n, None, packed % len(returns), len(target) - 1, chunk.size)


def _cut(column: Column, cuts: Sequence[int], longest: int) -> Iterator[list[Any]]:
    """Values in chunks: cut where groups (or rows of lists) end, and at `longest`."""
    borders = list(cuts) if column.shapes is None else row_ends(column.shapes)
    start = 0
    for border in (*borders, len(column.values)):
        while start < border:
            end = min(border, start + longest)
            yield column.values[start:end]
            start = end


def row_ends(shapes: Sequence[Shape]) -> list[int]:
    """Where the elements of each row of lists end."""
    ends: list[int] = []
    total = 0
    for shape in shapes:
        total += _elements(shape)
        ends.append(total)
    return ends


def _elements(shape: Shape) -> int:
    return shape if isinstance(shape, int) else sum(map(_elements, shape))
