"""Uploads of several parents in one task run: when a group closes, and how its tries go."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TypeVar

from rayorch_prefect.binding.futures import Upload
from rayorch_prefect.errors import StoreError, StoreUnavailable

T = TypeVar("T")

GROUP_SECONDS = 1.0
"""How long a whole parent waits at most for others to share its task run."""

UPLOAD_TRIES = 4
"""Tries of a parent's upload by default; each already tries its requests several times."""

_TRIES_REFUSED = 2
# Seconds between tries: 1, 3, 9, ... up to the longest, or half of that.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_STOP_STEP = 0.25


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
    most: int = UPLOAD_TRIES,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, T | Exception]]:
    """Each ordinal's result, or the error that is left after its bounded tries, once.

    All tries of a round go on at the same time. Only those that the store refused come again:
    once, or up to `most` tries in all where it is unavailable. Growing gaps lie between the
    rounds; `stopped` is asked meanwhile whether to give up.
    """
    left = dict(tries)
    for number in range(1, most + 1):
        begun = [(ordinal, _begun(begin)) for ordinal, begin in left.items()]
        for ordinal, future in begun:
            end = _end(future)
            if number >= tries_of(end, most) or stopped():
                del left[ordinal]
                yield ordinal, end
        if not left:
            return
        _pause(number, stopped)


def tries_of(end: object, most: int = UPLOAD_TRIES) -> int:
    """How many tries an upload gets, of `most`, that ends with this error each time."""
    if isinstance(end, StoreUnavailable):
        return most
    return min(_TRIES_REFUSED, most) if isinstance(end, StoreError) else 1


def _pause(number: int, stopped: Callable[[], bool]) -> None:
    seconds = min(_LONGEST_PAUSE, _FIRST_PAUSE * 3 ** (number - 1))
    end = time.monotonic() + random.uniform(seconds / 2, seconds)
    while not stopped() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _STOP_STEP))


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
