"""H2: a parent is published while a sibling parent's child still runs, and waits for just that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket

pytestmark = pytest.mark.handed("H2")


@pytest.mark.parametrize(
    ("waits", "early", "settings"),
    [
        ("B", "A", {}),
        pytest.param("A", "B", {}, marks=pytest.mark.slow),
        ("B", "A", {"microbatch_size": 1, "max_active_microbatches": 2}),
        pytest.param("B", "A", {"upload_workers": 1}, marks=pytest.mark.slow),
    ],
)
async def test_early_publish(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    waits: str,
    early: str,
    settings: dict[str, int],
) -> None:
    output = f"{bucket.destination}in/{early}.json.txt"
    put(**{early: 2, waits: {"n": 2, "wait_for": output}})

    told = await run_night("rowwise.b1r2", **settings)

    assert told.state == ("COMPLETED", "Completed")
    assert published(bucket) == {"A": whole("A", 2), "B": whole("B", 2)}
    # It was really there before: the waiting child ended at its first try.
    assert calls.starts == {"A/0": 1, "A/1": 1, "B/0": 1, "B/1": 1}
    finished = {row["uri"][-len("A.json")]: row["finished"] for row in told.rows}
    assert finished[early] < finished[waits]
