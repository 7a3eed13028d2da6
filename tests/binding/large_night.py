"""One night of many small sources in a process of its own: `python -m tests.binding.large_night N`.

It has a Prefect server, a store and a Ray of its own and prints, as JSON, what the night and the
server say of it, what the server's log complains of, and what this process grew by.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer, using_api
from rayorch_prefect.binding.recording import ended_task_runs, wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.execution.private_ray import private_ray
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.program import program, stage
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.seeding import seed
from tests.soak.memory import Memory
from tests.stores import running_store

SOURCE, DESTINATION = S3Location("night", "in/"), S3Location("night", "out/")
PROGRAM = "tests.binding.large_night:named_only"
MICROBATCH = 250
SAMPLED_EVERY = 200

_STORE_BYTES = 100 * 1024**2
_PAGE = 200
_POLL_S = 0.05


def named(source: Any) -> dict[str, str]:
    """The least that can be published."""
    return {".txt": source.key}


@program(version="1")
def named_only(source: Any) -> Any:
    return stage(named, batch_size=64, num_cpus=0.1)(source)


def main(sources: int) -> None:
    """Run it, and print what came of it."""
    with ExitStack() as services:
        folder = Path(services.enter_context(tempfile.TemporaryDirectory()))
        os.environ.update(services.enter_context(running_store("rclone")).environment)
        server = services.enter_context(PrefectServer(folder))
        services.enter_context(using_api(server.api_url))
        services.enter_context(private_ray(2, _STORE_BYTES))
        seed(SOURCE, {f"{i:05}": b"x" for i in range(sources)}, "text/plain")
        memory = Memory()
        night, wall_s = asyncio.run(_night(memory))
        recorded = wait_until_recorded(server, night)
        runs = list(_upload_runs(server, night))
        said = {
            "counts": str(night.tally()),
            "wall_s": wall_s,
            "microbatches": len(night.microbatches),
            "uploads": night.uploads,
            "recorded": recorded,
            "task_runs": ended_task_runs(server, night.id),
            "upload_states": Counter(state for state, _ in runs),
            "upload_names": len({name for _, name in runs}),
            "complaints": _complaints(server.log),
            "grown": memory.faults(),
            "slope": memory.slope(),
        }
        print(json.dumps(said))


async def _night(memory: Memory) -> tuple[Night, float]:
    settings = {"microbatch_size": MICROBATCH}
    began = time.monotonic()
    with watching() as nights:
        night = flow_state(nightly, PROGRAM, str(SOURCE), str(DESTINATION), **settings)
        running = asyncio.ensure_future(night)
        while not running.done():
            await asyncio.sleep(_POLL_S)
            published = nights[0].tally().published if nights else 0
            if published >= (len(memory.samples) + 1) * SAMPLED_EVERY:
                memory.sample(published, 0)
        assert running.result().is_completed(), running.result().message
        return nights[0], time.monotonic() - began


def _upload_runs(server: PrefectServer, night: Night) -> Iterator[tuple[str, str]]:
    """State and name of every upload, page by page."""
    asked = {
        "flow_runs": {"parent_flow_run_id": {"any_": [night.id]}},
        "task_runs": {"name": {"like_": "upload "}},
        "sort": "ID_DESC",
        "limit": _PAGE,
    }
    offset = 0
    while True:
        url = f"{server.api_url}/task_runs/filter"
        answer = httpx.post(url, json={**asked, "offset": offset}, trust_env=False)
        runs = answer.raise_for_status().json()
        yield from ((run["state_name"], run["name"]) for run in runs)
        offset += len(runs)
        if len(runs) < _PAGE:
            return


def _complaints(log: Path) -> list[str]:
    lines = log.read_text("utf-8", "replace").splitlines()
    wrong = ("ERROR", "CRITICAL", "Traceback", "locked", "OperationalError")
    return [line for line in lines if any(each in line for each in wrong)][:20]


if __name__ == "__main__":
    main(int(sys.argv[1]))
