"""H8: a flow process that is killed in mid-run; the same slice is started again at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rayorch_prefect.binding.prefect_server import PrefectServer
from tests.handed.conftest import Calls, RunNight, Told, eventually, published, whole
from tests.services import Bucket, S3Server, on_stores

pytestmark = pytest.mark.handed("H8")

NAMES = "ABCDEF"
N = 3
LEASE = "out/_rayorch/toy/lease.json"


@pytest.fixture
def started(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str
) -> Callable[[], subprocess.Popen[str]]:
    """Start a night of the toy in a process of its own."""

    def start() -> subprocess.Popen[str]:
        api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
        command = [sys.executable, "-m", "rayorch_prefect.cli.main", "run"]
        command += ["--program", "tests.handed.toy:rowwise.b1r2", "--microbatch-size", "4"]
        command += ["--source", bucket.source, "--destination", bucket.destination]
        return subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **api},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return start


def objects(bucket: Bucket) -> list[str]:
    return [key for key in bucket.keys("out/in/") if key.endswith(".json.txt")]


@on_stores
@pytest.mark.parametrize("moment", ["seen", pytest.param("answered", marks=pytest.mark.slow)])
async def test_kill_and_rerun(
    moment: str,
    bucket: Bucket,
    s3_server: S3Server,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    prefect_server: PrefectServer,
    started: Callable[[], subprocess.Popen[str]],
) -> None:
    put(**{name: {"n": N, "pause": 0.2} for name in NAMES})
    if moment == "seen":
        first = started()
        eventually(lambda: len(objects(bucket)) >= 2 or first.poll() is not None, 120.0)
        assert first.poll() is None, first.communicate()
    else:
        # The second object is there, its ledger entry is not.
        rule = s3_server.proxy.on(
            "PUT", f"{bucket.name}/out/in/", nth=2, times=1, after=lambda _: first.kill()
        )
        first = started()
        rule.wait(seconds=120.0)
        s3_server.proxy.remove(rule)
    first.kill()
    first.wait()
    before = {key.removeprefix("out/in/")[0] for key in objects(bucket)}
    owner = json.loads(bucket.get(LEASE))["owner"]
    calls_before = len(calls.lines("start"))
    workers = pids_of(calls)

    told = await run_night("rowwise.b1r2", microbatch_size=4)

    assert told.state == ("COMPLETED", "Completed")
    assert published(bucket) == {name: whole(name, N) for name in NAMES}
    again = {child.split("/")[0] for child in calls.lines("start")[calls_before:]}
    assert again == set(NAMES) - before
    assert {name for name, end in told.outcomes if end == "skipped"} == before
    assert 2 <= len(before) < len(NAMES)
    dead = Told(prefect_server, owner["run_id"], "")
    assert dead.state == ("CRASHED", "Crashed")
    assert told.id in dead.message
    assert {state for state, _ in dead.children} <= {"CRASHED", "COMPLETED"}
    eventually(lambda: not alive(workers), 30.0)


def pids_of(calls: Calls) -> set[int]:
    """The processes that have noted calls."""
    return {int(line.split(" ", 1)[0]) for line in calls.path.read_text().splitlines()}


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}
