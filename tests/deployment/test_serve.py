"""`examples/serve.py`: what it deploys, and that it serves it."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rayorch_prefect.binding.prefect_server import wait_until
from tests.deployment.conftest import ROOT, Api, Start
from tests.services import Bucket, on_moto

EXAMPLE = ROOT / "examples/serve.py"


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("serve_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_deploys_the_nightly_flow_every_night_and_once_at_a_time() -> None:
    made = loaded().nightly_deployment("s3://there/in/", "s3://there/out/")

    (schedule,) = made.schedules
    assert (schedule.schedule.cron, schedule.schedule.timezone) == ("0 2 * * *", "Europe/Berlin")
    assert made.concurrency_limit == 1
    assert made.concurrency_options.collision_strategy == "CANCEL_NEW"
    assert made.parameters["source"] == "s3://there/in/"


@on_moto
@pytest.mark.slow
def test_it_serves_a_run_that_is_asked_for(bucket: Bucket, start: Start, api: Api) -> None:
    bucket.put_sources(a={"n": 2})
    serving = start(str(EXAMPLE))

    def deployed() -> bool:
        assert serving.poll() is None
        return api.is_deployed("served", bucket.source)

    assert wait_until(deployed, 60)
    run = api.run(
        api.get("/deployments/name/nightly/served"), program="tests.binding.programs:joined"
    )
    assert wait_until(lambda: api.states(run) == ["Completed"], 120), api.states(run)
    assert bucket.get("out/in/a.json.txt") == b"0,1"
