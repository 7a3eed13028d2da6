"""Uploads by a Prefect task of the user's own, with our bookkeeping around it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, cast

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Failed

from rayorch_prefect.binding.futures import final_state
from rayorch_prefect.binding.microbatch import Microbatch, Taken
from rayorch_prefect.binding.near_uploads import NearUploads
from rayorch_prefect.binding.publishing import Shelf, as_published
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.upload_groups import in_rounds
from rayorch_prefect.binding.upload_tasks import UploadTask
from rayorch_prefect.binding.whole_parents import WholeParent
from rayorch_prefect.errors import ProgramError, StoreError
from rayorch_prefect.execution.plain_text import plain_text, writable
from rayorch_prefect.replay.redaction import redaction
from rayorch_prefect.storage import Artifact

_LONGEST_SHOWN = 80


class OwnUploads:
    """The uploads of one microbatch by `task(whole parent)`, one task run each.

    Use it as an async context around the microbatch's run. The task returns an Artifact, or
    several, for what it stored; the ledger entry follows. What it raises after its own retries is
    the parent's UploadFailed.
    """

    def __init__(self, batch: Microbatch, task: UploadTask) -> None:
        self._batch = batch
        # A cache key would be made of the parameters: the value's addresses, new at each run.
        self._task = task.with_options(cache_policy=NO_CACHE)
        self._near: NearUploads | None = None
        self._open: set[asyncio.Task[State[Any]]] = set()
        self._stack = AsyncExitStack()

    def start(self, ordinals: Sequence[int], name: str) -> asyncio.Task[State[Any]]:
        """Upload this whole parent; ends with the state of its last task run."""
        task = asyncio.create_task(self._upload(self._batch.take(ordinals), name))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        return task

    async def _upload(self, taken: Taken, name: str) -> State[Any]:
        [(ordinal, (parent, row))] = taken.items()
        night = self._batch.night
        index = self._batch.positions[ordinal]
        attempts, completed = self._attempts, False
        try:
            await asyncio.to_thread(night.shelf.require_owned)
            whole = WholeParent(parent, index, row.missing, night.order.destination)
            state = await self._state(whole, name)
            if completed := state.is_completed():
                attempts = 1  # what fails now is not what its tries were for
            end = await self._end(state, row, night.shelf)
        except Exception as error:
            state = Failed(message=f"{type(error).__name__}: {error}", data=error)
            end = error
        self._batch.end_uploads(taken, [(ordinal, end)], stage=self._task.name, attempts=attempts)
        if completed:
            self._batch.show_failed(ordinal)
        return state

    async def _state(self, whole: WholeParent, name: str) -> State[Any]:
        if self._near is not None:
            return await self._near.tried((whole,), name)
        return await final_state(self._task.submit(whole))

    async def _end(self, state: State[Any], row: Row, shelf: Shelf) -> Row | Exception:
        if self._near is not None and state.is_crashed():
            return self._near.crash(state)
        found = await state.aresult(raise_on_failure=False)
        if isinstance(found, Exception):
            return found
        if not state.is_completed():
            return RuntimeError(f"its task run ended as {state.name}: {state.message}")
        done = as_published(row, self._artifacts(found))
        return await asyncio.to_thread(_recorded, shelf, done)

    def _artifacts(self, returned: object) -> tuple[Artifact, ...]:
        found: Sequence[Any] = returned if isinstance(returned, (list, tuple)) else [returned]
        if not found or not all(map(_is_artifact, found)):
            raise ProgramError(
                f"upload task {self._task.name} returned {_shown(returned)}; expected an "
                "Artifact, or a list of one or more, for what it stored: key, uri and sha256 are "
                "texts, size is an int"
            )
        return tuple(cast(Sequence[Artifact], found))

    @property
    def _attempts(self) -> int:
        # Only the task itself knows how many of its tries a condition let it have.
        return 1 if self._task.retry_condition_fn else 1 + int(self._task.retries or 0)

    async def __aenter__(self) -> OwnUploads:
        if self._batch.night.order.upload_runner == "ray":
            near = NearUploads(self._batch, self._task)
            self._near = await self._stack.enter_async_context(near)
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
        await self._stack.aclose()


def _is_artifact(found: object) -> bool:
    """Whether it is one that the ledger and the manifest can hold."""
    if not isinstance(found, Artifact) or not _is_int(found.size):
        return False
    texts: tuple[object, ...] = (found.key, found.uri, found.sha256, found.etag)
    return all(isinstance(text, str) and text == writable(text) for text in texts)


def _is_int(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool)


def _shown(returned: object) -> str:
    # It may hold a secret, which would not be known any more once it is cut in two.
    return plain_text(repr(returned), _LONGEST_SHOWN, redaction())


def _recorded(shelf: Shelf, row: Row) -> Row | Exception:
    """The row once it is in the ledger, or why it is not after the bounded tries."""
    [(_, end)] = in_rounds({0: partial(_record_once, shelf, row)})
    if isinstance(end, StoreError):
        return StoreError(
            f"it was stored, but is not in the ledger, so the next run stores it again: {end}"
        )
    return end


def _record_once(shelf: Shelf, row: Row) -> Future[Row]:
    shelf.record(row)
    recorded: Future[Row] = Future()
    recorded.set_result(row)
    return recorded
