"""The services, and Prefect's command line as a process that uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from prefect.client.orchestration import get_client

from rayorch_prefect.binding.prefect_server import PrefectServer
from tests.services import Bucket, bucket, prefect_server, ray_cluster, s3_server

__all__ = ["bucket", "prefect_server", "ray_cluster", "s3_server"]

ROOT = Path(__file__).parents[2]
END_SECONDS = 20.0
# Characters of a process's log, where its test failed.
_SHOWN = 4_000

Start: TypeAlias = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(
    prefect_server: PrefectServer, ray_cluster: str, bucket: Bucket, tmp_path: Path
) -> Iterator[Start]:
    """Start a Python process at the root, its output in a file; ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "PREFECT_API_URL": prefect_server.api_url,
            "PREFECT_HOME": str(tmp_path / "home"),
            "PYTHONPATH": str(ROOT),
            "RAY_ADDRESS": ray_cluster,
            "RAYORCH_SOURCE": bucket.source,
            "RAYORCH_DESTINATION": bucket.destination,
        }
        log = (tmp_path / f"{len(running)}.log").open("w")
        running.append(
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return running[-1]

    yield start
    for process in running:
        end(process)
    # pytest shows it where the test failed.
    for log in sorted(tmp_path.glob("*.log")):
        print(f"{log.name} ends with:\n{log.read_text(errors='replace')[-_SHOWN:]}")


def end(process: subprocess.Popen[str]) -> None:
    """Ask the process to end, and make it."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@pytest.fixture
def prefect(start: Start, tmp_path: Path) -> Callable[..., str]:
    """Run a `prefect` command to its end; what it said."""

    def run(*arguments: str, seconds: float = 120) -> str:
        before = set(tmp_path.glob("*.log"))
        process = start("-m", "prefect", *arguments)
        status = process.wait(seconds)
        (log,) = set(tmp_path.glob("*.log")) - before
        said = log.read_text()
        assert status == 0, said
        return said

    return run


class Api:
    """Questions to the server, and runs asked of it, through Prefect's client: it asks again
    where SQLite is locked."""

    def get(self, path: Any) -> Any:
        with get_client(sync_client=True) as client:
            return client.request("GET", path).raise_for_status().json()

    def post(self, path: Any, body: dict[str, Any]) -> Any:
        with get_client(sync_client=True) as client:
            return client.request("POST", path, json=body).raise_for_status().json()

    def is_deployed(self, name: str, source: str) -> bool:
        """Whether there is a deployment of this name for the source: not another test's."""
        found = self.post("/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        return [each["parameters"].get("source") for each in found] == [source]

    def delete_schedules(self, deployment: dict[str, Any]) -> None:
        """No test waits for two o'clock, and none may meet it."""
        with get_client(sync_client=True) as client:
            for schedule in deployment["schedules"]:
                path: Any = f"/deployments/{deployment['id']}/schedules/{schedule['id']}"
                client.request("DELETE", path).raise_for_status()

    def run(self, deployment: dict[str, Any], **parameters: Any) -> str:
        """Ask for a run now; its id."""
        path = f"/deployments/{deployment['id']}/create_flow_run"
        return str(self.post(path, {"parameters": parameters})["id"])

    def states(self, *flow_run_ids: str) -> list[str]:
        return [self.get(f"/flow_runs/{run}")["state_name"] for run in flow_run_ids]

    def children(self, flow_run_id: str) -> list[tuple[str, str]]:
        """Name and state of each child flow run."""
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [flow_run_id]}}, "sort": "NAME_ASC"}
        return [(run["name"], run["state_name"]) for run in self.post("/flow_runs/filter", body)]


@pytest.fixture
def api(prefect_server: PrefectServer) -> Api:
    return Api()
