"""Ways to end a night early, on the real thing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Cancelling

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from rayorch_prefect.storage.terms import PART_BYTES_SETTING
from tests.binding.test_night import children_of
from tests.execution.conftest import alive_actors
from tests.handed.test_cancel import open_uploads
from tests.services import Bucket, S3Server, on_moto

PROGRAM = "tests.binding.programs:joined"


@asynccontextmanager
async def begun(
    bucket: Bucket, timeout_seconds: float | None = None
) -> AsyncIterator[tuple[asyncio.Task[State[object]], Night]]:
    """A night of two sources a microbatch, from its first published object on."""
    limited = nightly.with_options(timeout_seconds=timeout_seconds)
    with watching() as nights:
        running = asyncio.create_task(
            flow_state(limited, PROGRAM, bucket.source, bucket.destination, microbatch_size=2)
        )
        while not bucket.keys("out/in/"):
            assert not running.done()
            await asyncio.sleep(0.05)
        yield running, nights[0]


@on_moto
async def test_a_microbatch_that_is_cancelled_alone_leaves_its_siblings(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str
) -> None:
    quick = {name: {"n": 1} for name in ("a1", "b1", "c1", "c2")}
    bucket.put_sources(**quick, a2={"n": 60, "sleep": 0.5}, b2={"n": 3, "sleep": 0.5})

    async with begun(bucket) as (running, night):
        while not night.microbatches[0].flow_run_id:
            await asyncio.sleep(0.05)  # another one may have published first
        async with get_client() as client:
            await client.set_flow_run_state(night.microbatches[0].flow_run_id, Cancelling())
        state = await running
        assert not any(batch.is_open for batch in night.microbatches), "asked about for ever"

    assert (state.is_failed(), state.name) == (True, "Failed")
    assert "6 sources: 5 published, 0 failed, 0 dropped, 0 skipped, 1 not proc" in str(
        state.message
    )
    children = children_of(prefect_server, night.id)
    assert [run["state_name"] for run in children] == ["Cancelled", "Completed", "Completed"]
    rows = {row["uri"][-7:-5]: row for row in read_manifest(night.manifest).to_pylist()}
    assert len(rows) == 6
    assert rows["a2"]["row_outcome"] == "not_processed"
    assert rows["a2"]["reason"] == "cancelled: microbatch 0 alone, through Prefect"


@on_moto
@pytest.mark.slow
async def test_a_time_limit_ends_the_night_as_a_cancel_does(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str
) -> None:
    # Either microbatch may be begun first, and its long source then holds the one worker.
    quick, long = {"n": 1}, {"n": 600, "sleep": 0.5}
    bucket.put_sources(a1=quick, a2=long, b1=quick, b2=long)
    before = alive_actors()

    async with begun(bucket, timeout_seconds=20) as (running, night):
        state = await asyncio.wait_for(running, 20 + 15)

    assert (state.is_failed(), state.name) == (True, "TimedOut")
    assert {run["state_name"] for run in children_of(prefect_server, night.id)} == {"Cancelled"}
    assert alive_actors() <= before
    rows = read_manifest(night.manifest).to_pylist()
    reasons = [row["reason"] for row in rows if row["row_outcome"] == "not_processed"]
    published = [row for row in rows if row["row_outcome"] == "published"]
    assert len(published) in (1, 2)
    assert len(reasons) == 4 - len(published)
    assert all("timeout_seconds" in reason for reason in reasons)
    left = bucket.keys("out/")
    await asyncio.sleep(3)
    assert bucket.keys("out/") == left


@on_moto
@pytest.mark.slow
async def test_an_upload_that_is_cut_off_leaves_nothing_open(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    ray_cluster: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(PART_BYTES_SETTING, str(5 * 1024**2))
    bucket.put_sources(a={"times": 11_000_000, "log": str(tmp_path / "log")})
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(60)

    s3_server.before("PUT", "/out/in/a.json.txt", hold)
    with watching() as nights:
        running = asyncio.create_task(
            flow_state(nightly, "tests.binding.lethal:traced", bucket.source, bucket.destination)
        )
        assert await asyncio.to_thread(held.wait, 60)
        assert open_uploads(bucket) == ["out/in/a.json.txt"]
        asked = time.monotonic()
        running.cancel()
        state = await running

    assert state.is_cancelled()
    assert time.monotonic() - asked < 15
    assert open_uploads(bucket) == []
    left = bucket.keys("out/")
    go_on.set()
    await asyncio.sleep(2)
    assert (bucket.keys("out/"), open_uploads(bucket)) == (left, [])
    (row,) = read_manifest(nights[0].manifest).to_pylist()
    assert (row["row_outcome"], row["output_keys"]) == ("not_processed", [])
