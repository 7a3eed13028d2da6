"""H6: a row that hangs costs one parent; its process is gone, and the others are published."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.execution.test_deaths import alive
from tests.handed.conftest import Calls, RunNight, eventually, published, whole
from tests.services import Bucket, on_stores

pytestmark = pytest.mark.handed("H6")

N = 3
AT_MOST = timedelta(seconds=30)


@on_stores
@pytest.mark.parametrize(
    ("batch_size", "how"),
    [(9, "sleep"), pytest.param(1, "lock", marks=pytest.mark.slow)],
)
async def test_a_row_that_hangs(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    batch_size: int,
    how: str,
) -> None:
    put(A=N, B=N, C={"n": N, "hang": (0, how)})

    told = await run_night(f"limited.b{batch_size}", failure_policy=1)

    assert told.state == ("COMPLETED", "PartiallyCompleted")
    assert told.outcomes == [("A", "published"), ("B", "published"), ("C", "failed")]
    assert published(bucket) == {name: whole(name, N) for name in "AB"}
    (line,) = told.table
    assert (line["kind"], line["type"], line["child"], line["stage"], line["attempts"]) == (
        "AttemptsExhausted",
        "DeadlineExceeded",
        0,
        "Child",
        2,
    )
    assert line["cause"] == "stage Child was ended past row_limit_s=3"
    (failed,) = (row for row in told.rows if row["row_outcome"] == "failed")
    assert failed["finished"] - failed["started"] < AT_MOST
    assert calls.starts["C/0"] == 2
    hung = calls.processes("start", "C/0")
    eventually(lambda: not any(map(alive, hung)))
