"""H1: children end in another order than they stand in, outputs and summary keep the order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket

pytestmark = pytest.mark.handed("H1")


@pytest.mark.parametrize(
    ("shape", "counts", "microbatch_size"),
    [
        ("rowwise.b5r2", (7, 1, 4), 64),
        pytest.param("rowwise.b1r2", (4, 7, 0, 1), 2, marks=pytest.mark.slow),
        pytest.param("batchwise.b5r2", (1, 4, 7), 64, marks=pytest.mark.slow),
        ("batchwise.b16r2", (7, 3, 1, 5, 2), 2),
    ],
)
async def test_order(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    shape: str,
    counts: tuple[int, ...],
    microbatch_size: int,
) -> None:
    sizes = dict(zip("ABCDE", counts, strict=False))
    put(**{name: {"n": n, "pause": 0.05} for name, n in sizes.items()})

    told = await run_night(shape, microbatch_size=microbatch_size)

    assert told.state == ("COMPLETED", "Completed")
    slices = -(-len(sizes) // microbatch_size)
    assert told.children == [("COMPLETED", "Completed")] * slices
    # Each line names its parent, so a child under a foreign one would show.
    assert published(bucket) == {name: whole(name, n) for name, n in sizes.items()}
    assert sorted(told.outcomes) == [(name, "published") for name in sizes]
    assert told.outcomes == sorted(told.outcomes)
    assert [row["children"] for row in told.rows] == list(counts)
    once = {f"{name}/{i}": 1 for name, n in sizes.items() for i in range(n)}
    assert calls.starts == once


async def test_the_pauses_do_turn_the_order_of_ends_round(
    put: Callable[..., None], run_night: RunNight, calls: Calls
) -> None:
    """With two replicas and batches of one, child 1 of two ends before child 0."""
    put(A={"n": 2, "pause": 0.5})

    await run_night("rowwise.b1r2")

    assert calls.lines("end") == ["A/1", "A/0"]
