"""H5: a worker process that dies once costs that row one more try, and nothing already computed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket, on_stores

pytestmark = pytest.mark.handed("H5")

N = 4


@on_stores
@pytest.mark.parametrize(
    ("batch_size", "replicas", "name", "ordinal", "how"),
    [
        pytest.param(1, 1, "A", 3, "exit", marks=pytest.mark.slow),
        pytest.param(1, 2, "A", 3, int(signal.SIGKILL), marks=pytest.mark.slow),
        (1, 1, "C", 0, "exit"),
        (4, 1, "B", 1, int(signal.SIGKILL)),
    ],
)
async def test_worker_dies_once(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    tmp_path: Path,
    batch_size: int,
    replicas: int,
    name: str,
    ordinal: int,
    how: int | str,
) -> None:
    put(**{each: {"n": N} for each in "ABC"})
    put(**{name: {"n": N, "die": (ordinal, how, str(tmp_path / "died"))}})

    told = await run_night(f"rowwise.b{batch_size}r{replicas}")

    assert told.state == ("COMPLETED", "Completed")
    assert published(bucket) == {each: whole(each, N) for each in "ABC"}
    assert told.uploads == [(f"in/{each}.json", "Completed") for each in "ABC"]
    assert (tmp_path / "died").exists()
    assert_only_the_lost_batch_again(calls, f"{name}/{ordinal}", batch_size)


def assert_only_the_lost_batch_again(calls: Calls, fatal: str, batch_size: int) -> None:
    order = [f"{each}/{i}" for each in "ABC" for i in range(N)]
    first = order.index(fatal) // batch_size * batch_size
    lost = order[first : first + batch_size]
    started = calls.starts
    assert started[fatal] == 2
    assert {child for child in order if started[child] == 1} >= set(order) - set(lost)
    # In the lost batch: those that ran before the death ran again, the others just once.
    before = lost[: lost.index(fatal)]
    assert {child: started[child] for child in lost if child != fatal} == {
        child: 2 if child in before else 1 for child in lost if child != fatal
    }
