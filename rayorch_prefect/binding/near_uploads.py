"""Uploads as Ray tasks near the data: the flow's process sends addresses and gets rows, no bytes.

prefect-ray runs them. What it leaves open is done here: a bound on the uploads in flight, and what
follows when a Ray worker dies, which it would show as Running for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, cast
from uuid import UUID, uuid4

import httpx
from prefect import Task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Failed, exception_to_crashed_state
from prefect.task_runners import TaskRunner
from prefect_ray import RayTaskRunner
from prefect_ray.context import remote_options

from rayorch_prefect.binding.microbatch import Microbatch, Taken
from rayorch_prefect.binding.publishing import publish_and_record, upload_failure
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.upload_groups import UPLOAD_TRIES, in_rounds, tries_of
from rayorch_prefect.errors import ClusterError, EngineClosed, RayorchError
from rayorch_prefect.execution.appliers import sendable
from rayorch_prefect.execution.parcels import Parcel, cut_off

CRASH_TRIES = 3
"""Task runs that an upload gets when Ray workers die under it."""

REPORT_SECONDS = 3.0
"""How long a task run that died is given to appear at the server, before it is entered there."""

AT_ONCE = 4
"""Uploads of one group that a Ray task runs at the same time."""

Ends: TypeAlias = Mapping[int, "Row | Exception"]
NearTask: TypeAlias = Task[..., Any]


class UploadCrashed(ClusterError):
    """The Ray workers that uploaded a parent died."""


class NotAllUploaded(RayorchError):
    """Some uploads of a group failed; `ends` has the row or the error of each."""

    def __init__(self, message: str, ends: Ends) -> None:
        super().__init__(message, ends)
        self.ends = ends

    def __str__(self) -> str:
        return str(self.args[0])


def near_data() -> TaskRunner[PrefectFuture[Any]]:
    """prefect-ray's runner. It uses the Ray that the night's Engine has connected to."""
    runner: RayTaskRunner[Any] = RayTaskRunner()
    return cast(TaskRunner[PrefectFuture[Any]], runner)


def publish_near(
    parcels: Mapping[int, Parcel], domain: str, tries: int = UPLOAD_TRIES
) -> Ends | State[Any]:
    """Publish a group of parents by ordinal, on a Ray worker; each one's row.

    A Failed state under the gravest kind's name, with NotAllUploaded as its data, if the bounded
    tries of some, up to `tries`, are spent. `domain` is the parents'.
    """
    with ThreadPoolExecutor(min(AT_ONCE, len(parcels))) as pool:
        asked: dict[int, Callable[[], Future[Row]]] = {
            ordinal: partial(pool.submit, parcel.open) for ordinal, parcel in parcels.items()
        }
        ends = {
            ordinal: sendable(end) if isinstance(end, Exception) else end
            for ordinal, end in in_rounds(asked, tries)
        }
    errors = [end for end in ends.values() if isinstance(end, Exception)]
    if not errors:
        return ends
    failures = [upload_failure(error, domain, tries_of(error, tries)) for error in errors]
    worst = min(failures, key=lambda failure: failure.kind.gravity)
    several = f"{len(errors)} of {len(ends)} uploads failed: " if len(ends) > 1 else ""
    message = f"{several}{worst}"
    return Failed(message=message, data=NotAllUploaded(message, ends), name=worst.kind.value)


class NearUploads:
    """The uploads of one microbatch; use it as an async context around the microbatch's run.

    `task(parcels by ordinal, domain, names)` is `publish_near` as a task, on prefect-ray's runner;
    for `tried` alone it may be any other. At most `upload_workers` of its runs are open at the
    same time.
    """

    def __init__(self, batch: Microbatch, task: NearTask) -> None:
        self._batch = batch
        self._task = task
        self._slots = asyncio.Semaphore(batch.night.order.upload_workers)
        self._open: set[asyncio.Task[State[Any]]] = set()
        self._reports: list[asyncio.Task[None]] = []

    def start(self, ordinals: Sequence[int], name: str) -> asyncio.Task[State[Any]]:
        """Upload these whole parents; ends with the state of the last task run."""
        task = asyncio.create_task(self._upload(self._batch.take(ordinals), name))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def _upload(self, taken: Taken, name: str) -> State[Any]:
        parcels = {
            ordinal: Parcel(publish_and_record, parent, self._batch.night.shelf, row)
            for ordinal, (parent, row) in taken.items()
        }
        night = self._batch.night
        arguments = (parcels, night.root_domain, name, night.order.upload_tries)
        try:
            state = await self.tried(arguments, name)
            ends = await self._ends(state, list(taken))
        except Exception as error:
            # Ray itself is gone, or took none of the task.
            state = Failed(message=f"{type(error).__name__}: {error}", data=error)
            ends = dict.fromkeys(taken, error)
        self._batch.end_uploads(taken, ends.items())
        return state

    async def tried(self, arguments: tuple[Any, ...], name: str) -> State[Any]:
        """The last state of task runs with these arguments; a crashed one is repeated."""
        async with self._slots:
            if self._batch.stop.reason:
                raise EngineClosed(self._batch.stop.reason)
            state = await self._task_run(arguments, name)
            for _ in range(CRASH_TRIES - 1):
                if not state.is_crashed() or self._ends_early:
                    break
                self._batch.night.uploads += 1
                state = await self._task_run(arguments, name)
        return state

    async def _task_run(self, arguments: tuple[Any, ...], name: str) -> State[Any]:
        """One task run's final state; Crashed if its Ray worker died, and then reported."""
        with _once_and_beside_the_stages():
            future = self._task.submit(*arguments)
        reference = cast(Any, future).wrapped_future
        try:
            state: State[Any] = await asyncio.wrap_future(reference.future())
        except asyncio.CancelledError:
            cut_off(reference)
            self._report(future, name, Cancelled(message="its night was cancelled"))
            raise
        except Exception as error:
            state = await exception_to_crashed_state(error)
            self._report(future, name, state)
        return state

    async def _ends(self, state: State[Any], ordinals: list[int]) -> Ends:
        if state.is_crashed():
            error = self.crash(state)
            return dict.fromkeys(ordinals, error)
        found = await state.aresult(raise_on_failure=False)
        if isinstance(found, NotAllUploaded):
            return found.ends
        if isinstance(found, Exception):
            return dict.fromkeys(ordinals, found)
        return cast(Ends, found)

    def crash(self, state: State[Any]) -> RayorchError:
        """What it is to a parent that its task runs crashed."""
        if self._ends_early:
            return EngineClosed(self._ends_early)
        return UploadCrashed(
            f"the Ray workers that uploaded it died {CRASH_TRIES} times, the last time: "
            f"{state.message}"
        )

    @property
    def _ends_early(self) -> str:
        return self._batch.stop.reason or self._batch.night.reason

    def _report(self, future: PrefectFuture[Any], name: str, state: State[Any]) -> None:
        report = _reported(self._task, future.task_run_id, f"{self._task.name} {name}", state)
        self._reports.append(asyncio.create_task(report))

    async def __aenter__(self) -> NearUploads:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.gather(*self._reports)


@contextmanager
def _once_and_beside_the_stages() -> Iterator[None]:
    # Ray would run a crashed upload again behind Prefect's back. And the stages' workers hold
    # their CPUs for the whole night: an upload that asked for one might never start.
    with remote_options(max_retries=0, num_cpus=0):
        yield


async def _reported(task: NearTask, task_run_id: UUID, name: str, state: State[Any]) -> None:
    """End a task run at the server that could not do so itself."""
    try:
        async with get_client() as client:
            if await _ended(client, task_run_id, state):
                await _named(client, task_run_id, name)
            else:
                await client.create_task_run(
                    task,
                    id=task_run_id,
                    flow_run_id=_flow_run_id(),
                    dynamic_key=str(uuid4()),
                    name=name,
                    state=state,
                )
    except httpx.HTTPError as error:
        get_run_logger().warning(
            "%s (%s) is %s, which the server refused: %s", name, task_run_id, state.name, error
        )


async def _ended(client: PrefectClient, task_run_id: UUID, state: State[Any]) -> bool:
    """Set the state; False if the server does not know the task run, and will not soon."""
    until = time.monotonic() + REPORT_SECONDS
    while True:
        try:
            await client.set_task_run_state(task_run_id, state, force=True)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.NOT_FOUND:
                raise
            # What the worker said before it died comes by another way.
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.5)
        else:
            return True


async def _named(client: PrefectClient, task_run_id: UUID, name: str) -> None:
    """Prefect gives a run its name as it begins to run: a worker may have died before that."""
    run = await client.read_task_run(task_run_id)
    if run.run_count == 0:
        await client.set_task_run_name(task_run_id, name)


def _flow_run_id() -> UUID:
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return context.flow_run.id
