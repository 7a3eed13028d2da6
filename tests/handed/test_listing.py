"""H11: a prefix is a folder, however it is written, and a listing has more than one page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.opening import loaded, order_of
from rayorch_prefect.storage import S3Location, list_sources
from tests.handed.conftest import TOY
from tests.services import Bucket

pytestmark = pytest.mark.handed("H11")

KEYS = [f"in/{number:05}.json" for number in range(2005)]
OTHERS = [f"in_private/{number}.json" for number in range(3)]


# The quick store here is the one that answers from a process of its own.
@pytest.mark.parametrize(
    "bucket", ["rclone", pytest.param("moto", marks=pytest.mark.slow)], indirect=True
)
def test_listing(bucket: Bucket) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(bucket.put, content=b'{"n": 1}'), [*KEYS, *OTHERS]))

    for prefix in ("in/", "in"):
        source = f"s3://{bucket.name}/{prefix}"
        order = order_of(f"{TOY}rowwise.b1r1", source, bucket.destination)
        night = Night("planned", loaded(order.program), order)

        planned = night.plan()

        assert (planned["sources"], planned["to run"]) == (2005, 2005)
        assert [each.key for each in night.sources] == KEYS
        slices = [position for batch in night.microbatches for position in batch.positions]
        assert slices == list(range(2005))
    assert [each.key for each in list_sources(S3Location(bucket.name))] == [*KEYS, *OTHERS]
