"""Waiting for the final states of flow and task runs without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, cast

from prefect.client.schemas.objects import State
from prefect.flows import Flow
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

# An upload under way: its task run, or a task of the loop that looks after its task runs.
Upload: TypeAlias = "PrefectFuture[Any] | asyncio.Task[State[Any]]"


def threads(max_workers: int) -> TaskRunner[PrefectFuture[Any]]:
    """The thread runner, bounded: by default it starts a thread for each waiting upload."""
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=max_workers)
    return cast(TaskRunner[PrefectFuture[Any]], runner)


async def flow_state(flow: Flow[..., Any], *args: Any, **kwargs: Any) -> State[Any]:
    """Run an async flow; its final state, also where awaiting the flow would raise."""
    # Prefect types `return_state` for synchronous flows only.
    run = cast(Callable[..., Awaitable[State[Any]]], flow)
    return await run(*args, **kwargs, return_state=True)


async def final_state(future: Upload) -> State[Any]:
    """The task run's final state. The loop goes on meanwhile, which `future.wait()` would stop."""
    if isinstance(future, asyncio.Task):
        return await future
    if isinstance(future, PrefectConcurrentFuture):
        await asyncio.wrap_future(future.wrapped_future)
        future.wait()  # ends at once; without it the state stays at Pending
    else:
        await asyncio.to_thread(future.wait)
    return future.state


async def final_states(futures: Iterable[Upload]) -> list[State[Any]]:
    """The final states of all; a future that nobody waits for would be cancelled in silence."""
    return list(await asyncio.gather(*(final_state(future) for future in futures)))
