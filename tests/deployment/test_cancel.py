"""A deployed night is cancelled with Prefect's command, under a worker and under `serve`."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest

from rayorch_prefect.binding.prefect_server import wait_until
from rayorch_prefect.storage import read_manifest
from tests.deployment.conftest import ROOT, Api, Start
from tests.execution.conftest import alive_actors
from tests.services import Bucket, on_moto

PROGRAM = "tests.binding.programs:joined"
# One is published soon, whichever microbatch is begun first: what follows it holds the one worker
# for minutes. The others outlast the start of Prefect's command on any machine.
MICROBATCH_SIZE = 3
SLOW: dict[str, dict[str, float]] = {
    f"s{i}": {"n": 600, "sleep": 0.5} if i % MICROBATCH_SIZE else {"n": 1} for i in range(5)
}


@pytest.mark.slow
@on_moto
@pytest.mark.parametrize("how", ["worker", "serve"])
def test_prefects_cancel_command_ends_the_night(
    bucket: Bucket, prefect: Callable[..., str], start: Start, api: Api, how: str
) -> None:
    bucket.put_sources(**SLOW)
    if how == "worker":
        prefect("work-pool", "create", "nightly", "--type", "process", "--overwrite")
        prefect("--no-prompt", "deploy", "--all")
        host = start("-m", "prefect", "worker", "start", "--pool", "nightly", "--type", "process")
        name = "nightly"
    else:
        host = start(str(ROOT / "examples/serve.py"))
        name = "served"
        assert wait_until(lambda: api.is_deployed(name, bucket.source), 60)
    deployment = api.get(f"/deployments/name/nightly/{name}")
    api.delete_schedules(deployment)
    before = alive_actors()
    run = api.run(deployment, program=PROGRAM, microbatch_size=MICROBATCH_SIZE)
    assert wait_until(lambda: bool(bucket.keys("out/in/")), 120), api.states(run)

    prefect("flow-run", "cancel", run)
    asked_at = time.monotonic()
    assert wait_until(lambda: api.states(run) == ["Cancelled"], 15), api.states(run)

    assert time.monotonic() - asked_at < 15
    left = bucket.keys("out/")
    assert {state for _, state in api.children(run)} == {"Cancelled"}
    assert wait_until(lambda: alive_actors() <= before, 5)
    (manifest,) = [key for key in left if "/manifests/" in key][:1]
    folder = manifest.rpartition("/")[0]
    rows = read_manifest(f"s3://{bucket.name}/{folder}/").to_pylist()
    outcomes = [row["row_outcome"] for row in rows]
    assert len(outcomes) == len(SLOW)
    assert set(outcomes) == {"published", "not_processed"}
    assert host.poll() is None
    assert wait_until(lambda: not psutil.Process(host.pid).children(recursive=True), 15)
    time.sleep(3)
    assert bucket.keys("out/") == left
    assert api.states(run) == ["Cancelled"]
