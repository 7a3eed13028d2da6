"""The progress artifact of a microbatch: how far it is, while it runs and after it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from uuid import UUID

from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact
from prefect.logging import get_run_logger

UPDATE_SECONDS = 1.0
END_SECONDS = 3.0
"""How long the last update may take at most."""

# A percentage and a line of text.
Progress: TypeAlias = tuple[float, str]


@asynccontextmanager
async def progress_artifact(
    key: str, look: Callable[[], Progress], patience: Callable[[], float] = lambda: END_SECONDS
) -> AsyncIterator[None]:
    """Show what `look` says as a progress artifact of the current run while the body runs.

    At most one update a second, none where nothing has changed, and one at the end, which may
    take `patience()` seconds: so it stays at where the body got to. Where Prefect does not take it
    the log says so, once.
    """
    shown = _Shown(key, look)
    over = asyncio.Event()
    showing = asyncio.create_task(shown.until(over))
    try:
        yield
    finally:
        over.set()
        _, late = await asyncio.wait({showing}, timeout=patience())
        for task in late:
            task.cancel()


class _Shown:
    def __init__(self, key: str, look: Callable[[], Progress]) -> None:
        self._key = key
        self._look = look
        self._artifact: UUID | None = None
        self._last: Progress | None = None
        self._refused = False

    async def until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self._update()
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), UPDATE_SECONDS)
        await self._update()

    async def _update(self) -> None:
        now = self._look()
        if now == self._last:
            return
        try:
            await self._show(*now)
        except Exception as error:
            # It is only shown: a server that is away changes no outcome.
            if not self._refused:
                get_run_logger().warning("the progress artifact is not up to date: %s", error)
            self._refused = True
        else:
            self._last = now

    async def _show(self, percent: float, text: str) -> None:
        if self._artifact is None:
            self._artifact = await acreate_progress_artifact(percent, self._key, text)
        else:
            await aupdate_progress_artifact(self._artifact, percent, text)
