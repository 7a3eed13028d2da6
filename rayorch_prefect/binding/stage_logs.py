"""What stages log in their workers, written to the log of a flow run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

from prefect.context import SettingsContext
from prefect.logging import get_run_logger

from rayorch_prefect.execution.stage_lines import OnLine, StageLine, log_line


def in_this_run(named: Callable[[int], str] | None = None) -> OnLine:
    """A taker of lines for the log of the current flow run; from any thread, and after its end.

    `named` gives the key of a parent by its index, by default what the Engine calls it.
    """
    run_logger = get_run_logger()
    loop = asyncio.get_running_loop()
    context = _of_settings()

    def write(line: StageLine) -> None:
        key = None if named is None or line.parent is None else named(line.parent)
        run_logger.log(line.level, "%s", line.shown(key))

    def take(line: StageLine) -> None:
        try:
            loop.call_soon_threadsafe(write, line, context=context)
        except RuntimeError:  # the loop is closed
            log_line(line)

    return take


def _of_settings() -> Context:
    """A context that only says where Prefect's server is.

    The Engine remembers who takes lines for a thousand microbatches: all of the current context
    would keep each flow run with its client and all its task runs.
    """
    context = Context()
    if settings := SettingsContext.get():
        context.run(SettingsContext.__var__.set, settings)
    return context
