"""Waiting for the final states of flow and task runs without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.context import SyncClientContext
from prefect.flows import Flow
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.states import Cancelled, exception_to_crashed_state
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner

# An upload under way: its task run, or a task of the loop that looks after its task runs.
Upload: TypeAlias = "PrefectFuture[Any] | asyncio.Task[State[Any]]"


_CUT_OFF: State[Any] = Cancelled(message="cut off before it had begun")


class _Threads(ThreadPoolTaskRunner[Any]):
    """Does not wait for its threads as its flow run ends.

    The uploads were waited for before, but for those that a cancel gave up. Prefect would wait on
    the loop's thread, and all else of the night with it: for an upload task that hangs, for ever.
    """

    def cancel_all(self) -> None:
        for event in self._cancel_events.values():
            event.set()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)


def threads(max_workers: int) -> TaskRunner[PrefectFuture[Any]]:
    """The thread runner, bounded: by default it starts a thread for each waiting upload."""
    runner: ThreadPoolTaskRunner[Any] = _Threads(max_workers=max_workers)
    return cast(TaskRunner[PrefectFuture[Any]], runner)


@contextmanager
def one_client() -> Iterator[None]:
    """Let the task runs submitted inside share a client of Prefect's API.

    By itself each task run in a thread makes two, and each of them reads the certificates anew:
    tens of milliseconds of this process.
    """
    with SyncClientContext.get_or_create():
        yield


async def flow_state(flow: Flow[..., Any], *args: Any, **kwargs: Any) -> State[Any]:
    """Run an async flow; its final state, also where awaiting the flow would raise."""
    # Prefect types `return_state` for synchronous flows only.
    run = cast(Callable[..., Awaitable[State[Any]]], flow)
    return await run(*args, **kwargs, return_state=True)


async def task_state(task: Task[..., Any], *args: Any) -> State[Any]:
    """Run an async task on the loop; its final state, also where awaiting it would raise."""
    run = cast(Callable[..., Awaitable[State[Any]]], task)
    return await run(*args, return_state=True)


async def final_state(future: Upload) -> State[Any]:
    """The task run's final state. The loop goes on meanwhile, which `future.wait()` would stop."""
    if isinstance(future, asyncio.Task):
        await asyncio.wait({future})
        return _CUT_OFF if future.cancelled() else future.result()
    if isinstance(future, PrefectConcurrentFuture):
        try:
            await asyncio.wait({asyncio.wrap_future(future.wrapped_future)})
        except asyncio.CancelledError:
            cut_off(future)
            raise
        return await _of_thread(future)
    await asyncio.to_thread(future.wait)
    return future.state


async def _of_thread(future: PrefectConcurrentFuture[Any]) -> State[Any]:
    wrapped = future.wrapped_future
    if wrapped.cancelled():
        return _CUT_OFF
    raised = wrapped.exception()
    if raised is not None:
        # Prefect's own code raised: its server may be away.
        return await exception_to_crashed_state(raised)
    future.wait()  # at once; without it the state is asked of the server, on the loop's thread
    return future.state


async def final_states(futures: Iterable[Upload]) -> list[State[Any]]:
    """The final states of all; a future that nobody waits for would be cancelled in silence."""
    return list(await asyncio.gather(*(final_state(future) for future in futures)))


def cut_off(future: Upload) -> None:
    """Cancel an upload that has not begun, or that a task of the loop looks after."""
    if isinstance(future, asyncio.Task):
        future.cancel()
    elif isinstance(future, PrefectConcurrentFuture):
        future.wrapped_future.cancel()
