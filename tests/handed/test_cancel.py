"""H7: a night that is cancelled at its first published object."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Cancelling

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage.client import s3_client
from tests.execution.conftest import alive_actors
from tests.handed.conftest import TOY, Calls, Told, published
from tests.services import Bucket, on_stores

SOURCES = [f"s{i}" for i in range(10)]
N = 4


def listing(bucket: Bucket) -> list[tuple[str, Any]]:
    """Key and time of change of every object there is."""
    found = s3_client().list_objects_v2(Bucket=bucket.name).get("Contents", [])
    return sorted((each.get("Key", ""), each.get("LastModified")) for each in found)


def open_uploads(bucket: Bucket) -> list[str]:
    """The keys of uploads in parts that nobody ended."""
    try:
        answer = s3_client().list_multipart_uploads(Bucket=bucket.name)
    except ClientError as error:
        # What rclone says of a bucket that never had one.
        if "NoSuchUpload" not in str(error):
            raise
        return []
    return [each.get("Key", "") for each in answer.get("Uploads", [])]


@pytest.mark.handed("H7")
@on_stores
async def test_cancelled_at_the_first_published_object(
    bucket: Bucket,
    prefect_server: PrefectServer,
    ray_cluster: str,
    put: Callable[..., None],
    calls: Calls,
) -> None:
    put(**{name: {"n": N, "sleep": 0.5} for name in SOURCES})
    before = alive_actors()

    with watching() as nights:
        running: asyncio.Task[State[Any]] = asyncio.create_task(
            flow_state(
                nightly, TOY + "rowwise.b2r1", bucket.source, bucket.destination, microbatch_size=3
            )
        )
        while not published(bucket):
            assert not running.done()
            await asyncio.sleep(0.1)
        asked = time.monotonic()
        async with get_client() as client:
            await client.set_flow_run_state(nights[0].id, Cancelling())
        state = await running
    took = time.monotonic() - asked

    told = Told(prefect_server, nights[0].id, nights[0].manifest)
    assert took < 15
    assert state.is_cancelled()
    assert told.state == ("CANCELLED", "Cancelled")
    assert set(told.children) == {("CANCELLED", "Cancelled")}
    assert alive_actors() <= before
    left, begun = listing(bucket), sum(calls.starts.values())
    assert 1 <= len(published(bucket)) < len(SOURCES)
    await asyncio.sleep(10)
    assert listing(bucket) == left
    assert sum(calls.starts.values()) == begun
    assert open_uploads(bucket) == []
    done = dict.fromkeys(published(bucket), "published")
    assert dict(told.outcomes) == {name: done.get(name, "not_processed") for name in SOURCES}
    reasons = {row["reason"] for row in told.rows if row["row_outcome"] == "not_processed"}
    assert all("cancelled: through Prefect" in reason for reason in reasons)
    assert f"10 sources: {len(done)} published" in told.message
