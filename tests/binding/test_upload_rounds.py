"""The tries of uploads: how many, of which errors, and until when."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from rayorch_prefect.binding.upload_groups import in_rounds, tries_of
from rayorch_prefect.errors import ProgramError, StoreError, StoreUnavailable

Asked = dict[int, Callable[[], Future[str]]]


def ending(times: list[float], *ends: Exception | str) -> Callable[[], Future[str]]:
    """A try that ends as listed, the last for ever; notes when it began."""
    left = list(ends)

    def begin() -> Future[str]:
        times.append(time.monotonic())
        future: Future[str] = Future()
        end = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(end, Exception):
            future.set_exception(end)
        else:
            future.set_result(end)
        return future

    return begin


@pytest.mark.parametrize(
    ("error", "most", "tries"),
    [
        (StoreUnavailable("down"), 3, 3),
        (StoreError("denied"), 3, 2),
        (StoreError("denied"), 1, 1),
        (ProgramError("odd"), 3, 1),
    ],
)
def test_an_error_gets_its_tries_with_growing_gaps(error: Exception, most: int, tries: int) -> None:
    times: list[float] = []
    asked: Asked = {7: ending(times, error)}
    rounds = in_rounds(asked, most)
    assert list(rounds) == [(7, error)]
    assert len(times) == tries == tries_of(error, most)
    if tries == 3:
        assert times[2] - times[1] > times[1] - times[0] > 0.4


def test_only_what_failed_comes_again() -> None:
    done: list[float] = []
    again: list[float] = []
    asked: Asked = {0: ending(done, "a"), 1: ending(again, StoreUnavailable("down"), "b")}
    rounds = in_rounds(asked)
    assert list(rounds) == [(0, "a"), (1, "b")]
    assert (len(done), len(again)) == (1, 2)


def test_a_pause_ends_when_the_work_is_to_stop() -> None:
    times: list[float] = []
    error = StoreUnavailable("down")
    end = time.monotonic() + 0.2
    found = in_rounds({0: ending(times, error)}, 9, lambda: time.monotonic() > end)
    assert list(found) == [(0, error)]
    assert len(times) == 2
