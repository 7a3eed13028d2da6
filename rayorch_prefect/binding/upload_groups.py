"""Uploads of several parents in one task run: when a group closes, and how its tries go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TypeVar

from rayorch_prefect.binding.futures import Upload
from rayorch_prefect.errors import StoreError

T = TypeVar("T")

GROUP_SECONDS = 1.0
"""How long a whole parent waits at most for others to share its task run."""

UPLOAD_PAUSES = (0.5, 1.0)
"""Seconds between the tries of a parent's upload; each try already retries its requests."""


class UploadGroup:
    """Gathers ordinals and submits them as soon as there are `size`, or after GROUP_SECONDS.

    `closed[i]` are the ordinals of the group that `futures[i]` uploads.
    """

    def __init__(self, size: int, submit: Callable[[list[int]], Upload]) -> None:
        self.closed: list[list[int]] = []
        self.futures: list[Upload] = []
        self._size = size
        self._submit = submit
        self._open: list[int] = []
        self._closes_at = 0.0

    def add(self, ordinal: int) -> None:
        """Take a whole parent in."""
        if not self._open:
            self._closes_at = time.monotonic() + GROUP_SECONDS
        self._open.append(ordinal)
        if len(self._open) >= self._size:
            self.close()

    def close(self) -> None:
        """Submit what is open."""
        if self._open:
            ordinals, self._open = self._open, []
            self.futures.append(self._submit(ordinals))
            self.closed.append(ordinals)

    def drop(self) -> None:
        """Submit nothing more of what is open."""
        self._open = []

    async def closed_in_time(self, events: asyncio.Queue[T]) -> T:
        """The next event; the group is closed meanwhile when its time has come."""
        if self._open:
            try:
                return await asyncio.wait_for(events.get(), self._closes_at - time.monotonic())
            except TimeoutError:
                self.close()
        return await events.get()


def in_rounds(
    tries: Mapping[int, Callable[[], Future[T]]],
) -> Iterator[tuple[int, T | Exception]]:
    """Each ordinal's result, or the error that is left after its bounded tries, once.

    All tries of a round go on at the same time; only those that a store refused come again.
    """
    left = dict(tries)
    for pause in (*UPLOAD_PAUSES, None):
        begun = [(ordinal, _begun(begin)) for ordinal, begin in left.items()]
        for ordinal, future in begun:
            end = _end(future)
            if pause is None or not isinstance(end, StoreError):
                del left[ordinal]
                yield ordinal, end
        if not left:
            return
        if pause is not None:
            time.sleep(pause)


def tries_of(error: Exception) -> int:
    """How many tries an upload got that ended with this error."""
    return len(UPLOAD_PAUSES) + 1 if isinstance(error, StoreError) else 1


def _begun(begin: Callable[[], Future[T]]) -> Future[T]:
    try:
        return begin()
    except Exception as error:
        future: Future[T] = Future()
        future.set_exception(error)
        return future


def _end(future: Future[T]) -> T | Exception:
    try:
        return future.result()
    except Exception as error:
        return error
