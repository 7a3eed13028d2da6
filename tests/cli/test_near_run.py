"""`rayorch-prefect run --upload-runner ray` with a Ray and a server of its own."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from rayorch_prefect.binding.prefect_server import PrefectServer
from tests.cli.test_run import started
from tests.services import Bucket, on_moto


@pytest.mark.slow
@on_moto
def test_the_record_is_whole_though_ray_ends_with_the_night(bucket: Bucket, tmp_path: Path) -> None:
    """What a Ray worker has to say must not end with it."""
    names = [f"s{number}" for number in range(12)]
    bucket.put_sources(**{name: {"n": 2} for name in names})

    running = started(bucket, {"PREFECT_HOME": str(tmp_path)}, "--upload-runner", "ray")
    out, errors = running.communicate(timeout=250)

    assert running.returncode == 0, errors
    assert "not all task runs" not in out
    with PrefectServer(tmp_path) as server:
        body = {"task_runs": {"name": {"like_": "upload "}}}
        runs = httpx.post(f"{server.api_url}/task_runs/filter", json=body, trust_env=False).json()
    assert sorted((run["name"], run["state_name"]) for run in runs) == sorted(
        (f"upload in/{name}.json", "Completed") for name in names
    )
