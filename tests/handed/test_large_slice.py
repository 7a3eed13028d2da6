"""H12: one slice of 5,000 sources with keys of 200 characters.

It is cancelled once some are published: all 5,000 uploads would take minutes and show no more.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from tests.handed.conftest import TOY, Told
from tests.services import Bucket

pytestmark = [pytest.mark.handed("H12"), pytest.mark.slow]

SOURCES = 5_000
ENOUGH = 20
MOST_BYTES = 64 * 1024


@pytest.mark.parametrize("bucket", ["moto"], indirect=True)
async def test_a_slice_of_5000_long_keys(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str
) -> None:
    keys = [f"in/{number:05}-".ljust(195, "k") + ".json" for number in range(SOURCES)]
    assert {len(key) for key in keys} == {200}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(bucket.put, content=b'{"n": 0}'), keys))

    settings = {"microbatch_size": SOURCES, "upload_group": 5, "upload_workers": 2}
    with watching() as nights:
        running = asyncio.ensure_future(
            flow_state(nightly, TOY + "rowwise.b1r1", bucket.source, bucket.destination, **settings)
        )
        while not nights or nights[0].tally().published < ENOUGH:
            assert not running.done(), running.exception() or running.result().message
            await asyncio.sleep(0.1)
        nights[0].cancel("enough for a test")
        state = await running

    assert state.is_cancelled(), state.message
    told = Told(prefect_server, nights[0].id, nights[0].manifest)
    assert told.children == [("CANCELLED", "Cancelled")]
    for run in (told.run, *told.child_runs):
        assert len(json.dumps(run["parameters"])) < MOST_BYTES
    rows = told.rows
    assert [row["uri"] for row in rows] == [f"s3://{bucket.name}/{key}" for key in keys]
    counts = Counter(row["row_outcome"] for row in rows)
    assert counts["published"] >= ENOUGH
    assert counts["published"] + counts["not_processed"] == SOURCES
