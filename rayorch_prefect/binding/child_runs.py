"""Starting a microbatch's flow run at a Prefect server that may be too busy to take it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
from prefect.client.schemas.objects import State

if TYPE_CHECKING:
    from rayorch_prefect.binding.microbatch import Microbatch

RunChild: TypeAlias = "Callable[[Microbatch], Awaitable[State[Any]]]"

PAUSES = (5.0, 10.0, 20.0, 40.0)
"""Seconds before each further try, on top of the minute that Prefect's client tries by itself."""

logger = logging.getLogger(__name__)


async def child_state(batch: Microbatch, run_child: RunChild) -> State[Any]:
    """The child flow run's final state; it is tried again where the server did not take it.

    A server on SQLite refuses a new run while it records thousands of task runs, and one that is
    away answers nothing. Only a run that has not begun is tried again. Raises what Prefect's
    client raised last, at once if the night is to stop.
    """
    for pause in PAUSES:
        try:
            return await run_child(batch)
        except httpx.HTTPError as error:
            if batch.flow_run_id or batch.stop.reason or not _passes(error):
                raise
            logger.warning(
                "Prefect's server does not take microbatch %d (%s: %s); again in %.0f s",
                batch.index,
                type(error).__name__,
                error,
                pause,
            )
        await _pause(batch, pause)
    return await run_child(batch)


def _passes(error: httpx.HTTPError) -> bool:
    """Whether it may be another answer later."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.is_server_error
    return True


async def _pause(batch: Microbatch, seconds: float) -> None:
    sleeping = asyncio.ensure_future(asyncio.sleep(seconds))
    try:
        await batch.stop.or_done(sleeping, grace_s=0)
    finally:
        sleeping.cancel()
