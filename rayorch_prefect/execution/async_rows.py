"""Rows of an async stage: several in flight on one event loop, each with an end of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rayorch_prefect.execution import whereabouts
from rayorch_prefect.execution.bars import Bars, Gate
from rayorch_prefect.execution.batch import (
    Fetch,
    LargeReturns,
    encoded,
    large_returns,
    read_inputs,
    references,
)
from rayorch_prefect.execution.messages import BatchMessage, CallContract, Reply, RowsReply
from rayorch_prefect.execution.stage_runner import FAULTS, Results, StageRunner, attempt_of
from rayorch_prefect.model.failures import TypedFailure
from rayorch_prefect.model.outcomes import DEADLINE_EXCEEDED
from rayorch_prefect.model.reports import RowFailure

# A row that is cancelled may take so long to put away what it holds.
CANCELLING_S = 2.0
# A timer that rings later than this was held up by another row, which took the time.
_LATE_S = 0.1


class AsyncRows:
    """The rows of one worker. `limit_s` is the time of a row, from its own start.

    A row past its limit is cancelled. `unfit` says that one did not end for all that: the worker
    is to get no more rows. Time in which another row held the loop is not counted, once a row.
    """

    def __init__(self, runner: StageRunner, stage: str, limit_s: float | None) -> None:
        self.unfit = False
        self._runner = runner
        self._stage = stage
        self._limit_s = limit_s

    async def run(
        self, contract: CallContract, message: BatchMessage, fetch: Fetch, bars: Bars
    ) -> tuple[Reply, LargeReturns]:
        """Run a batch of one row; never raises for what the stage or its values do."""
        returns = large_returns(message)
        if references(message.chunks):  # they may be on another node, and the loop is not to wait
            inputs = await asyncio.to_thread(read_inputs, message, fetch)
        else:
            inputs = read_inputs(message, fetch)
        if not isinstance(inputs, list):
            return inputs, returns
        gate = Gate(bars, message)
        whereabouts.begin_beside(gate)
        begin = asyncio.get_running_loop().time()
        results = await self._results(contract, inputs, gate)
        busy = asyncio.get_running_loop().time() - begin
        if not isinstance(results, Results):
            return results, returns
        reply = encoded(contract, message, results, returns, busy)
        if isinstance(reply, RowsReply):
            reply = replace(reply, unfit=self.unfit)
        return reply, returns

    async def _results(self, contract: CallContract, inputs: list[list[Any]], gate: Gate) -> Any:
        if gate.skips(0):
            return self._runner.checked_row(contract, gate, None, skipped=True)
        gate.starts(0)
        row = [column[0] for column in inputs]
        with self._runner.memory():
            result = await self._within_limit(lambda: self._runner.call(*row))
            return self._runner.checked_row(contract, gate, result)

    async def _within_limit(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """A row's result, or the RowFailure of an attempt that failed."""
        if self._limit_s is None:
            return await _caught(call)
        task = asyncio.ensure_future(_caught(call))
        if await _ends_within(task, self._limit_s):
            return task.result()
        task.cancel()
        ended, _ = await asyncio.wait({task}, timeout=CANCELLING_S)
        self.unfit = self.unfit or not ended
        said = f"stage {self._stage}: a row was cancelled past its limit of {self._limit_s:g} s"
        if not ended:
            said += f" and has not ended {CANCELLING_S:g} s later; its worker is replaced"
        return RowFailure(None, DEADLINE_EXCEEDED, said)


async def _ends_within(task: asyncio.Future[Any], limit_s: float) -> bool:
    loop = asyncio.get_running_loop()
    due = loop.time() + limit_s
    ended, _ = await asyncio.wait({task}, timeout=limit_s)
    late = loop.time() - due
    if not ended and late > _LATE_S:
        ended, _ = await asyncio.wait({task}, timeout=late)
    return bool(ended)


async def _caught(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except TypedFailure as failure:
        return failure
    except FAULTS as error:
        return attempt_of(error)
