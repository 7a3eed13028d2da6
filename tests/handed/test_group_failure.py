"""H4: a child that reports GroupFailure stops its siblings, and nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket

pytestmark = pytest.mark.handed("H4")

N = 5


@pytest.mark.parametrize(
    ("batch_size", "spoilt", "ordinal", "raised", "tolerated"),
    [
        pytest.param(1, "B", 2, False, 0, marks=pytest.mark.slow),
        (1, "B", 2, True, 1),
        pytest.param(1, "A", 0, False, 0, marks=pytest.mark.slow),
        pytest.param(1, "C", 4, False, 1, marks=pytest.mark.slow),
        (3, "B", 2, False, 0),
        (7, "A", 3, True, 0),
    ],
)
async def test_group_failure(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    batch_size: int,
    spoilt: str,
    ordinal: int,
    raised: bool,
    tolerated: int,
) -> None:
    put(**{name: {"n": N} for name in "ABC" if name != spoilt})
    put(**{spoilt: {"n": N, "spoil": ordinal, "raised": raised}})

    told = await run_night(f"rowwise.b{batch_size}r1", failure_policy=tolerated)

    if tolerated:
        assert told.state == ("COMPLETED", "PartiallyCompleted")
    else:
        assert told.state == ("FAILED", "GroupFailure")
    assert "2 published, 1 failed" in told.message
    assert published(bucket) == {name: whole(name, N) for name in "ABC" if name != spoilt}
    assert_no_sibling_after(calls, spoilt, ordinal, batch_size)
    (line,) = told.table
    assert (line["source key"], line["kind"], line["type"], line["child"], line["stage"]) == (
        f"in/{spoilt}.json",
        "GroupFailure",
        "Spoilt",
        ordinal,
        "Child",
    )
    assert f"child {ordinal} of {spoilt} spoils all" in line["cause"]
    (row,) = (row for row in told.rows if row["row_outcome"] == "failed")
    assert (row["kind"], row["type"], row["output_keys"]) == ("GroupFailure", "Spoilt", [])
    assert f"child {ordinal}" in row["cause"]


def assert_no_sibling_after(calls: Calls, spoilt: str, ordinal: int, batch_size: int) -> None:
    """None of a batch later than the report's; each before it once; all of the others once."""
    order = [f"{name}/{i}" for name in "ABC" for i in range(N)]
    at = order.index(f"{spoilt}/{ordinal}")
    end_of_batch = (at // batch_size + 1) * batch_size
    barred = {child for child in order[end_of_batch:] if child.startswith(spoilt)}
    started = calls.starts
    assert set(started.values()) == {1}
    assert not barred & started.keys()
    assert set(order[: at + 1]) <= started.keys()
    assert {child for child in order if not child.startswith(spoilt)} <= started.keys()
