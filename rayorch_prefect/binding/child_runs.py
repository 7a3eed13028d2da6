"""Starting a microbatch's flow run at a Prefect server that may be too busy to take it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import PrefectException
from prefect.states import Cancelled

from rayorch_prefect.binding.prefect_server import ServerNotReached

if TYPE_CHECKING:
    from rayorch_prefect.binding.microbatch import Microbatch

RunChild: TypeAlias = "Callable[[Microbatch], Awaitable[State[Any]]]"

PAUSES = (5.0, 10.0, 20.0, 40.0)
"""Seconds before each further try, on top of the minute that Prefect's client tries by itself."""

TELL_SECONDS = 10.0
"""How long it may take to tell the server an end that it did not take."""

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


async def child_end(batch: Microbatch, run_child: RunChild) -> State[Any]:
    """The child flow run's final state, also where the server took no such run, or not its end.

    What became of the sources does not depend on it. Without a flow run nothing more is begun.
    """
    tries = 0

    def tried(batch: Microbatch) -> Awaitable[State[Any]]:
        nonlocal tries
        tries += 1
        return run_child(batch)

    try:
        state = await child_state(batch, tried)
    except (httpx.HTTPError, PrefectException) as error:
        state = await _unlike_the_server(batch, error)
    if tries > 1 or not batch.flow_run_id:
        await _end_pending(batch)
    return state


async def _unlike_the_server(batch: Microbatch, error: Exception) -> State[Any]:
    """What the microbatch came to, where Prefect's client raised this."""
    what = "the end" if batch.flow_run_id else "the flow run"
    text = f"Prefect's server did not take {what} of microbatch {batch.index}: {error}"
    logger.warning("%s", text)
    if not batch.flow_run_id:
        batch.night.broke(ServerNotReached(text))
    batch.leave_unprocessed(text)
    state = batch.state()
    if batch.flow_run_id:
        await _told(batch, state)
    return state


async def _end_pending(batch: Microbatch) -> None:
    """End flow runs that the server made for the microbatch and did not let begin: they would stay
    Pending for ever. They have no names of their own yet, but their parameters."""
    state: State[Any] = Cancelled(message="the server did not let it begin")
    refused = f"a flow run of microbatch {batch.index} that did not begin may stay Pending"
    async with _client_or(refused) as client:
        found = await client.read_flow_runs(flow_run_filter=_pending_of(batch.night.id))
        for run in found:
            if run.parameters.get("index") == batch.index:
                await client.set_flow_run_state(run.id, state, force=True)


def _pending_of(night: str) -> FlowRunFilter:
    return FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[UUID(night)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING])),
    )


async def _told(batch: Microbatch, state: State[Any]) -> None:
    """Tell the server the end once more: the flow run would stay Running for ever."""
    refused = f"the flow run of microbatch {batch.index} is {state.name}, and stays as it is"
    async with _client_or(refused) as client:
        await client.set_flow_run_state(UUID(batch.flow_run_id), state, force=True)


@asynccontextmanager
async def _client_or(refused: str) -> AsyncIterator[PrefectClient]:
    """A client to tell the server something by; where it does not take that, the log says so."""
    try:
        async with asyncio.timeout(TELL_SECONDS), get_client() as client:
            yield client
    except (httpx.HTTPError, PrefectException, TimeoutError) as error:
        logger.warning("%s at Prefect: %r", refused, error)


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
