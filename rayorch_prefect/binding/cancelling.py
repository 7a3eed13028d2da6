"""How a night notices that it is to end: signals, its state at Prefect, its own cancellation."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Container, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

import anyio
from prefect._internal.control_listener import get_intent
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.stopping import CANCELLED, heard_signals

T = TypeVar("T")

POLL_SECONDS = 1.0
"""How often Prefect is asked whether the night or one of its microbatches is to be cancelled."""

_ENDS = [StateType.CANCELLING, StateType.CANCELLED]

END_SECONDS = 12.0
"""How long a cancelled night may take to put everything away, before it is left as it is."""

THROUGH_PREFECT = f"{CANCELLED}: through Prefect"
BY_ITS_TASK = f"{CANCELLED}: the asyncio task of its flow was"
TIMED_OUT = "timed out: the flow's timeout_seconds have passed"

logger = logging.getLogger(__name__)


async def until_ended(night: Night, work: Coroutine[Any, Any, T]) -> T | None:
    """Run `work` to its end and have the night told of every way in which it can be cancelled.

    None if a cancelled night's work did not end in time. Only what comes from a time limit is
    raised as CancelledError after the work has ended, and as TerminationSignal a SIGTERM after
    which Prefect runs the flow again; otherwise the night's state says it.
    """
    working = asyncio.create_task(work)
    ended = False
    # Until the sources are chosen there is nothing to account for.
    night.stop.then(lambda: None if night.planned else working.cancel())
    with heard_signals(night.cancel):
        async with _watched(night):
            try:
                ended = await night.stop.or_done(working, grace_s=END_SECONDS)
            except asyncio.CancelledError:
                timed_out = _of_a_time_limit()
                night.cancel(TIMED_OUT if timed_out else BY_ITS_TASK)
                with anyio.CancelScope(shield=True):
                    ended = await _ended_anyway(night, working)
                if timed_out:
                    raise
    if not ended:
        working.cancel()
    if _goes_on_elsewhere():
        raise TerminationSignal(signal.SIGTERM)
    return working.result() if ended and not working.cancelled() else None


async def _ended_anyway(night: Night, working: asyncio.Task[Any]) -> bool:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return await night.stop.or_done(working, grace_s=END_SECONDS)


def _of_a_time_limit() -> bool:
    """Whether a cancel scope around us is over: Prefect's `timeout_seconds` are one."""
    return anyio.current_effective_deadline() <= anyio.current_time()


def _goes_on_elsewhere() -> bool:
    """Whether who sent SIGTERM sees to the run's next state, as when a node is drained."""
    return get_intent() in ("reschedule", "relinquish")


@asynccontextmanager
async def _watched(night: Night) -> AsyncIterator[None]:
    """Ask Prefect for the states from time to time while the body runs."""
    watching = asyncio.create_task(_watch(night))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _watch(night: Night) -> None:
    # Without a runner nobody tells a flow that it is Cancelling; of a child flow nobody ever does.
    # The client's own patience, a minute, would let a cancel wait for as long after an outage.
    with temporary_settings(updates={PREFECT_CLIENT_MAX_RETRIES: 0}):
        while True:
            try:
                async with get_client() as client:
                    while True:
                        await asyncio.sleep(POLL_SECONDS)
                        _tell(night, await _asked_to_end(client, night))
            except Exception as error:
                _away(night, error)


def _away(night: Night, error: Exception) -> None:
    """A server that is away for a while must not end the night."""
    if not night.prefect_away:
        text = f"{type(error).__name__}: {error}"
        logger.warning("Prefect's server gives no answer; the night goes on (%s)", text)
    night.prefect_away = True


def _tell(night: Night, asked: Container[str]) -> None:
    if night.id in asked:
        night.cancel(THROUGH_PREFECT)
    for batch in night.microbatches:
        if batch.flow_run_id in asked:
            batch.stop.ask(f"{CANCELLED}: microbatch {batch.index} alone, through Prefect")


async def _asked_to_end(client: PrefectClient, night: Night) -> set[str]:
    """The ids of the night's open flow runs that are Cancelling or Cancelled.

    The server picks them: what it sends is read on the thread that runs everything else, and it
    sends no more than its limit of runs.
    """
    open_runs = [night.id, *(each.flow_run_id for each in night.microbatches if each.is_open)]
    wanted = FlowRunFilter(
        id=FlowRunFilterId(any_=[UUID(run) for run in open_runs]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_ENDS)),
    )
    return {str(run.id) for run in await client.read_flow_runs(flow_run_filter=wanted)}


def outermost() -> bool:
    """Whether the current flow run was started by no other one."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return run is not None and run.parent_task_run_id is None
