"""Uploads as Ray tasks: published from there, and nothing lost when a Ray worker dies."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import ray
from prefect.client.orchestration import get_client
from prefect.states import Crashed, Pending, Running

from rayorch_prefect.binding import near_uploads
from rayorch_prefect.binding.opening import order_of
from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until
from rayorch_prefect.errors import UsageError
from rayorch_prefect.tasks.upload import upload_near
from tests.binding.conftest import RunNightly
from tests.binding.leaks import by_blocks_alone, leaks
from tests.binding.lethal import LARGE
from tests.binding.test_night import ask, children_of
from tests.services import Bucket, S3Server, on_moto, on_stores

PROGRAM = "tests.binding.lethal:traced"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where outputs note the processes that they arrive in."""
    path = tmp_path / "log"
    path.touch()
    return path


def lives(tmp_path: Path, deaths: int) -> str:
    path = tmp_path / f"lives-{deaths}"
    path.write_text("x" * deaths)
    return str(path)


def upload_runs_once(
    server: PrefectServer, night_id: str, expected: dict[tuple[str, str], int]
) -> Counter[tuple[str, str]]:
    """`upload_runs`, once the server has caught up: it records task runs in the background."""
    wait_until(lambda: upload_runs(server, night_id) == expected, 30)
    return upload_runs(server, night_id)


def upload_runs(server: PrefectServer, night_id: str) -> Counter[tuple[str, str]]:
    """How many upload task runs there are of each name and state."""
    ids = [run["id"] for run in children_of(server, night_id)]
    body = {"flow_runs": {"id": {"any_": ids}}, "task_runs": {"name": {"like_": "upload "}}}
    return Counter(
        (run["name"], run["state_name"]) for run in ask(server, "/task_runs/filter", body)
    )


def test_an_unknown_runner_is_refused() -> None:
    with pytest.raises(UsageError, match="upload_runner is 'dask'; expected one of threads, ray"):
        order_of("m:a", "s3://there/in/", "s3://there/out/", upload_runner="dask")


@pytest.mark.parametrize(
    ("ran", "name"), [(False, "upload in/b.json"), (True, "a name of its own")]
)
async def test_a_run_whose_worker_died_before_it_ran_gets_its_name(
    prefect_server: PrefectServer, ran: bool, name: str
) -> None:
    run_id = uuid4()
    async with get_client() as client:
        await client.create_task_run(
            upload_near,
            None,
            str(uuid4()),
            id=run_id,
            name="a name of its own",
            state=Pending(),
        )
        if ran:
            await client.set_task_run_state(run_id, Running())

        await near_uploads._reported(upload_near, run_id, "upload in/b.json", Crashed())

        run = await client.read_task_run(run_id)
    assert (run.name, run.state_name) == (name, "Crashed")


@on_stores
async def test_values_go_from_the_object_store_to_the_uploading_process_alone(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly, log: Path
) -> None:
    asked: dict[str, Any] = {"log": str(log), "times": LARGE}
    bucket.put_sources(a=asked, b=asked, c={"log": str(log)})

    ended = await run_nightly(PROGRAM, upload_runner="ray", microbatch_size=2)

    assert ended.state.name == "Completed", ended.message
    assert bucket.get("out/in/a.json.txt") == b"a" * LARGE
    assert bucket.get("out/in/c.json.txt") == b"c"
    arrivals = log.read_text().split()
    assert len(arrivals) == 3
    assert str(os.getpid()) not in arrivals
    expected = {
        ("upload in/a.json", "Completed"): 1,
        ("upload in/b.json", "Completed"): 1,
        ("upload in/c.json", "Completed"): 1,
    }
    assert upload_runs_once(prefect_server, ended.night.id, expected) == expected
    assert ended.night.summary().first_upload_s is not None
    assert ray.is_initialized()
    again = await run_nightly(PROGRAM, upload_runner="ray")
    assert set(again.outcomes.values()) == {"skipped"}


@on_moto
async def test_an_upload_whose_worker_dies_runs_again(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    log: Path,
    tmp_path: Path,
) -> None:
    bucket.put_sources(a={"log": str(log)}, b={"log": str(log), "lives": lives(tmp_path, 1)})
    secrets = [uuid4().hex, uuid4().hex]

    with by_blocks_alone(bucket, s3_server, "OFTHEBLOCK", *secrets) as (places, used):
        ended = await run_nightly(PROGRAM, upload_runner="ray", **places)

    assert ended.state.name == "Completed", ended.message
    assert used == {"OFTHEBLOCK"}
    assert await asyncio.to_thread(leaks, secrets, prefect_server, bucket) == set()
    assert bucket.get("out/in/b.json.txt") == b"b"
    assert len(log.read_text().split()) == 3
    expected = {
        ("upload in/a.json", "Completed"): 1,
        ("upload in/b.json", "Crashed"): 1,
        ("upload in/b.json", "Completed"): 1,
    }
    assert upload_runs_once(prefect_server, ended.night.id, expected) == expected
    assert ended.night.summary().upload_task_runs == 3


@pytest.mark.slow
@on_moto
async def test_an_upload_whose_workers_always_die_fails_its_row_alone(
    bucket: Bucket,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    log: Path,
    tmp_path: Path,
) -> None:
    bucket.put_sources(a={"log": str(log)}, b={"log": str(log), "lives": lives(tmp_path, 9)})

    ended = await run_nightly(PROGRAM, upload_runner="ray")

    assert (ended.state.is_failed(), ended.state.name) == (True, "UploadFailed")
    assert ended.outcomes == {"in/a.json": "published", "in/b.json": "failed"}
    assert "UploadCrashed" in ended.message
    assert "died 3 times" in ended.message
    expected = {
        ("upload in/a.json", "Completed"): 1,
        ("upload in/b.json", "Crashed"): 3,
    }
    assert upload_runs_once(prefect_server, ended.night.id, expected) == expected
    assert bucket.keys("out/in/b") == []


@pytest.mark.slow
@on_moto
async def test_what_the_store_refuses_fails_its_row_alone(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    log: Path,
) -> None:
    bucket.put_sources(**{name: {"log": str(log)} for name in "abc"})

    with s3_server.refusing("PUT", "/out/in/b.json"):
        ended = await run_nightly(PROGRAM, upload_runner="ray", upload_group=3, upload_tries=2)

    assert (ended.state.is_failed(), ended.state.name) == (True, "UploadFailed")
    assert ended.outcomes == {
        "in/a.json": "published",
        "in/b.json": "failed",
        "in/c.json": "published",
    }
    ((name, state),) = upload_runs(prefect_server, ended.night.id)
    assert (name.endswith("and 2 more"), state) == (True, "UploadFailed")
    assert bucket.keys("out/in/b") == []


@pytest.mark.slow
@on_moto
async def test_a_value_that_cannot_be_published_is_the_programs_defect(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 1})

    ended = await run_nightly("tests.binding.programs:unpublishable", upload_runner="ray")

    assert (ended.state.is_failed(), ended.state.name) == (True, "ContractError")
    assert "a published output is bytes" in ended.message


@pytest.mark.slow
@on_moto
async def test_a_cancelled_night_stops_publishing(
    bucket: Bucket, run_nightly: RunNightly, log: Path
) -> None:
    bucket.put_sources(**{f"s{i}": {"log": str(log)} for i in range(30)})
    running = asyncio.ensure_future(run_nightly(PROGRAM, upload_runner="ray", upload_workers=1))
    while not bucket.keys("out/in/"):
        await asyncio.sleep(0.1)

    running.cancel()
    ended = await running

    assert ended.state.is_cancelled()
    assert set(ended.outcomes.values()) == {"published", "not_processed"}
    left = bucket.keys("out/in/")
    await asyncio.sleep(3)
    assert bucket.keys("out/in/") == left
    assert len(left) < 30
    assert ray.is_initialized()
