"""Nights of the toy program, and what the Prefect API, the store and the call log say of them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from tests.services import Bucket, bucket, prefect_server, ray_cluster, s3_server

__all__ = ["bucket", "prefect_server", "ray_cluster", "s3_server"]

TOY = "tests.handed.toy:"


@dataclass(frozen=True, slots=True)
class Told:
    """One night as the Prefect API and the manifest tell it."""

    server: PrefectServer
    id: str
    manifest: str

    def ask(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = httpx.post(f"{self.server.api_url}{path}", json=body, trust_env=False)
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        return found

    @property
    def run(self) -> dict[str, Any]:
        (run,) = self.ask("/flow_runs/filter", {"flow_runs": {"id": {"any_": [self.id]}}})
        return run

    @property
    def state(self) -> tuple[str, str]:
        """Type and name of the final state."""
        run = self.run
        return run["state_type"], run["state_name"]

    @property
    def message(self) -> str:
        return str(self.run["state"]["message"])

    @property
    def children(self) -> list[tuple[str, str]]:
        """Type and name of the child flow runs' states, in the order of their names."""
        return [(run["state_type"], run["state_name"]) for run in self.child_runs]

    @property
    def child_runs(self) -> list[dict[str, Any]]:
        """The child flow runs, in the order of their names."""
        return self.ask("/flow_runs/filter", {**self._of_children, "sort": "NAME_ASC"})

    @property
    def uploads(self) -> list[tuple[str, str]]:
        """Source key and state name of each upload task run, by source key."""
        runs = self.ask("/task_runs/filter", self._of_children)
        return sorted(
            (run["name"].removeprefix("upload "), run["state_name"])
            for run in runs
            if run["name"].startswith("upload ")
        )

    @property
    def table(self) -> list[dict[str, Any]]:
        """The rows of the night's table of failed parents."""
        wanted = {"flow_run_id": {"any_": [self.id]}, "type": {"any_": ["table"]}}
        (table,) = self.ask("/artifacts/filter", {"artifacts": wanted})
        lines: list[dict[str, Any]] = json.loads(table["data"])
        return lines

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The manifest's rows, in its order."""
        rows: list[dict[str, Any]] = read_manifest(self.manifest).to_pylist()
        return rows

    @property
    def outcomes(self) -> list[tuple[str, str]]:
        """Source name and row outcome, in the manifest's order."""
        return [(_name(row["uri"]), row["row_outcome"]) for row in self.rows]

    @property
    def _of_children(self) -> dict[str, Any]:
        return {"flow_runs": {"parent_flow_run_id": {"any_": [self.id]}}, "limit": 200}


@dataclass(frozen=True, slots=True)
class Calls:
    """What the child stage noted, line by line in the order of the calls."""

    path: Path

    def lines(self, what: str) -> list[str]:
        """What stands behind the word `what`: `start`, `end`, `spoil` or `batch`."""
        noted = self.path.read_text().splitlines() if self.path.exists() else []
        return [words[2] for words in (line.split(" ", 2) for line in noted) if words[1] == what]

    def processes(self, what: str, child: str) -> set[int]:
        """The ids of the processes that noted it of a child."""
        noted = [line.split(" ", 2) for line in self.path.read_text().splitlines()]
        return {int(pid) for pid, *words in noted if words == [what, child]}

    @property
    def starts(self) -> Counter[str]:
        """How often each child, as `A/3`, was begun."""
        return Counter(self.lines("start"))


RunNight = Callable[..., Awaitable[Told]]


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.fixture
def put(bucket: Bucket, calls: Calls) -> Callable[..., None]:
    """Store one source a keyword: its number of children, or all that stands in it."""

    def store(**sources: int | dict[str, Any]) -> None:
        for name, asked in sources.items():
            content = {"n": asked} if isinstance(asked, int) else asked
            bucket.put_sources(**{name: {**content, "log": str(calls.path)}})

    return store


@pytest.fixture
def run_night(bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str) -> RunNight:
    """Run the nightly flow on the bucket; `program` is a shape in the toy's module or a name.

    Two processes upload unless the settings say otherwise: each takes a second of a CPU to start.
    """

    async def run(program: str, destination: str = "", **settings: Any) -> Told:
        name = program if ":" in program else TOY + program
        where = destination or bucket.destination
        asked = {"upload_workers": 2, **settings}
        with watching() as nights:
            await flow_state(nightly, name, bucket.source, where, **asked)
        (night,) = nights
        assert wait_until_recorded(prefect_server, night)
        return Told(prefect_server, night.id, night.manifest)

    return run


def whole(name: str, n: int) -> bytes:
    """The right output of a source with n children."""
    return "".join(f"{name}/{i}\n" for i in range(n)).encode()


def published(bucket: Bucket) -> dict[str, bytes]:
    """Content by source name of every output there is; nothing lies anywhere else."""
    found: dict[str, bytes] = {}
    for key in bucket.keys(""):
        if key.startswith(("in/", "out/_rayorch/")):
            continue
        assert key.startswith("out/in/")
        assert key.endswith(".json.txt")
        found[key.removeprefix("out/in/").removesuffix(".json.txt")] = bucket.get(key)
    return found


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until it holds; fails if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def _name(uri: str) -> str:
    return uri.rsplit("/", 1)[-1].removesuffix(".json")
