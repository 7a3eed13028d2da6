"""One batch in a worker whose rows hand over their children in chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from rayorch_prefect.execution import whereabouts
from rayorch_prefect.execution.bars import Bars, Gate
from rayorch_prefect.execution.batch import Fetch, LargeReturns, encoded_outputs, read_inputs
from rayorch_prefect.execution.children import Due, Made, Pace, RowsInChunks, columns_of
from rayorch_prefect.execution.codec import LargeChunk
from rayorch_prefect.execution.marker import Marker
from rayorch_prefect.execution.messages import (
    BatchMessage,
    CallContract,
    Portion,
    Reply,
    ReturnedOutput,
    RowChunk,
    RowsReply,
)
from rayorch_prefect.execution.stage_runner import Breach, StageRunner
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, Shape

# A portion, and its large chunks.
Handed = tuple[Portion, list[LargeChunk]]


def run_in_chunks(
    runner: StageRunner,
    contract: CallContract,
    message: BatchMessage,
    fetch: Fetch,
    bars: Bars,
    before_start: Callable[[], None] = lambda: None,
    marker: Marker | None = None,
    due: Due | None = None,
) -> Iterator[Handed]:
    """Run one batch; the last portion ends it. Never raises for what the stage does."""
    if marker is not None:
        marker.between_rows(message.batch)
    inputs = read_inputs(message, fetch)
    if not isinstance(inputs, list):
        yield _ended(inputs)
        return
    before_start()
    begin = time.perf_counter()
    gate = Gate(bars, message, marker)
    whereabouts.begin(gate)
    rows = RowsInChunks(runner, contract, message, gate, due or Pace())
    try:
        for made in rows.run(inputs):
            yield _portion(contract, made, None)
        end = _reply(contract, message, rows, time.perf_counter() - begin)
        last = _portion(contract, rows.take(), end)
    except Breach as broken:
        last = _ended(broken.breach)
    except _Unstorable as problem:
        last = _ended(problem.fault)
    whereabouts.end()
    if marker is not None:
        marker.between_rows(message.batch)
    yield last


class _Unstorable(Exception):
    def __init__(self, fault: AttemptFailed | ContractBreach) -> None:
        super().__init__(fault)
        self.fault = fault


def _ended(end: Reply) -> Handed:
    return Portion((), end, large=False), []


def _portion(contract: CallContract, made: Sequence[Made], end: Reply | None) -> Handed:
    returns: LargeReturns = [[]]
    chunks: list[RowChunk] = []
    for row, first, children in made:
        outputs = encoded_outputs(contract, (), columns_of(contract, children, row), returns)
        if not isinstance(outputs, tuple):
            raise _Unstorable(outputs)
        chunks.append(RowChunk(row, first, outputs[0]))
    return Portion(tuple(chunks), end, large=bool(returns[0])), returns[0]


def _reply(
    contract: CallContract, message: BatchMessage, rows: RowsInChunks, busy_s: float
) -> RowsReply:
    """The report of a batch whose children have all left."""
    outputs: list[ReturnedOutput] = []
    for depth, is_mask in zip(contract.list_depths, contract.masks, strict=True):
        nothing: Shape = 0 if depth == 1 else ()
        outputs.append(ReturnedOutput((), (nothing,) * message.rows, b"" if is_mask else None))
    skipped = tuple(rows.skipped)
    return RowsReply(message.rows, tuple(outputs), rows.failures, 0, skipped, busy_s)
