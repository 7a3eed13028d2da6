"""`prefect.yaml` at the root: deployed, run by a process worker, never two at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.deployment.conftest import Api
from tests.services import Bucket, on_moto

PROGRAM = "tests.binding.programs:joined"


@pytest.mark.slow
@on_moto
def test_a_worker_runs_the_deployment_and_a_second_run_is_cancelled(
    bucket: Bucket, prefect: Callable[..., str], api: Api
) -> None:
    bucket.put_sources(a={"n": 3}, b={"n": 0}, c={"n": 2, "sleep": 1})
    prefect("work-pool", "create", "nightly", "--type", "process", "--overwrite")
    prefect("--no-prompt", "deploy", "--all")
    deployment = api.get("/deployments/name/nightly/nightly")
    (schedule,) = deployment["schedules"]
    assert (schedule["active"], schedule["schedule"]["cron"]) == (True, "0 2 * * *")
    assert schedule["schedule"]["timezone"] == "Europe/Berlin"
    assert deployment["entrypoint"] == "rayorch_prefect.flows.nightly.nightly"
    assert deployment["pull_steps"] == []
    asked = deployment["parameters"]
    assert (asked["source"], asked["destination"]) == (bucket.source, bucket.destination)
    api.delete_schedules(deployment)
    runs = [api.run(deployment, program=PROGRAM, microbatch_size=2) for _ in range(2)]

    said = prefect("worker", "start", "--pool", "nightly", "--type", "process", "--run-once")

    states = dict(zip(api.states(*runs), runs, strict=True))
    assert sorted(states) == ["Cancelled", "Completed"], said
    assert api.children(states["Completed"]) == [
        ("microbatch 0: 2 sources", "Completed"),
        ("microbatch 1: 1 sources", "Completed"),
    ]
    assert api.children(states["Cancelled"]) == []
    assert bucket.get("out/in/a.json.txt") == b"0,1,2"
    assert bucket.get("out/in/c.json.txt") == b"0,1"
