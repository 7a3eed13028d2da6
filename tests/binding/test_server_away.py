"""The Prefect server is away for 20 s in the middle of a night."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer, using_api
from rayorch_prefect.binding.recording import ended_task_runs
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from tests.binding.test_night import ask, children_of
from tests.services import Bucket, on_moto

AWAY_SECONDS = 20
SOURCES = 24


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[PrefectServer]:
    """A server that this test may stop; not the one that others use."""
    with PrefectServer(tmp_path / "home") as server, using_api(server.api_url):
        yield server


@on_moto
@pytest.mark.slow
async def test_the_night_goes_on_and_its_record_is_right(
    bucket: Bucket, own_server: PrefectServer, ray_cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.put_sources(**{f"s{i:02}": {"n": 4, "sleep": 0.5} for i in range(SOURCES)})
    caplog.set_level(logging.WARNING)
    with watching() as nights:
        running: asyncio.Task[State[object]] = asyncio.create_task(
            flow_state(
                nightly,
                "tests.handed.toy:rowwise.b2r1",
                bucket.source,
                bucket.destination,
                microbatch_size=3,
            )
        )
        while not bucket.keys("out/in/"):
            assert not running.done()
            await asyncio.sleep(0.05)

        own_server.stop()
        published = len(bucket.keys("out/in/"))
        await asyncio.sleep(AWAY_SECONDS)
        meanwhile = len(bucket.keys("out/in/"))
        await asyncio.to_thread(own_server.start, own_server.port)
        state = await running

    assert meanwhile > published + 3
    (night,) = nights
    assert (state.is_completed(), state.name) == (True, "Completed"), state.message
    rows = read_manifest(night.manifest).to_pylist()
    assert [row["row_outcome"] for row in rows] == ["published"] * SOURCES
    (run,) = ask(own_server, "/flow_runs/filter", {"flow_runs": {"id": {"any_": [night.id]}}})
    assert run["state_name"] == "Completed"
    assert {each["state_name"] for each in children_of(own_server, night.id)} == {"Completed"}
    missing = night.summary().task_runs_missing
    assert missing is not None
    assert f"{missing} of {SOURCES + SOURCES // 3} task runs of this night" in caplog.text
    assert missing == SOURCES + SOURCES // 3 - ended_task_runs(own_server, night.id)
