"""Parents that failed before their upload, each as a task run in a Failed state of that name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed

from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.stopping import Stop

MAX_RUNS = 200
"""Failed parents of a microbatch that get a task run each; the others are counted in its log."""

_MAX_TEXT = 500

# Runs the task `failed(key, kind, text)`; its final state.
ShowFailed: TypeAlias = Callable[[str, str, str], Awaitable[State[Any]]]


_showing: ContextVar[bool] = ContextVar("rayorch_showing_failed", default=False)


def _is_of_others(_: logging.LogRecord) -> bool:
    return not _showing.get()


# Prefect logs two errors for each task run that fails. These are made to show a failure, which
# their state does; the lines cost a third of such a run, and bury what else is in the log.
logging.getLogger("prefect.task_runs").addFilter(_is_of_others)


def failed_state(kind: str, text: str) -> State[Any]:
    """What the task run of a failed parent ends as: named by the failure's kind."""
    return Failed(name=kind, message=text)


class FailedRuns:
    """Shows failed parents one after the other, beside the microbatch's own work.

    `begun` counts the task runs, `left_out` the failed parents that got none.
    """

    def __init__(self, show: ShowFailed) -> None:
        self.begun = 0
        self.left_out = 0
        self._show = show
        self._refused = False
        self._rows: asyncio.Queue[Row | None] = asyncio.Queue()

    def add(self, row: Row) -> None:
        """A parent has failed; called on the flow's loop."""
        if self.begun < MAX_RUNS:
            self.begun += 1
            self._rows.put_nowait(row)
        else:
            self.left_out += 1

    @asynccontextmanager
    async def shown(self, stop: Stop) -> AsyncIterator[None]:
        """While the body runs; what is open at its end comes after it, until the `stop`."""
        showing = asyncio.create_task(self._run())
        try:
            yield
        finally:
            self._rows.put_nowait(None)
            if not await stop.or_done(showing, grace_s=0):
                showing.cancel()
            if self.left_out:
                get_run_logger().warning(
                    "%d more sources failed than the %d shown as task runs; the manifest has all",
                    self.left_out,
                    self.begun,
                )

    async def _run(self) -> None:
        _showing.set(True)
        while (row := await self._rows.get()) is not None:
            failure = row.failure
            assert failure is not None
            if self._refused:
                self.begun, self.left_out = self.begun - 1, self.left_out + 1
                continue
            try:
                await self._show(row.source.key, failure.kind.value, str(failure)[:_MAX_TEXT])
            except Exception as error:
                # Prefect's own code raised: its server may be away, and each try takes long.
                self.begun -= 1
                self._refused = True
                get_run_logger().warning("%s is not shown as failed: %s", row.source.key, error)
