"""rayorch-prefect under Prefect: the nightly flow, with uploads as task runs."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import OwnRay
from benchmarks.own_store import own_store
from benchmarks.systems.publishing import (
    DESTINATION,
    SOURCE,
    UPLOADERS,
    declared,
    published,
    seeded,
)
from rayorch_prefect import Program

SETTINGS = (
    "The nightly flow: a child flow run for every 120 documents, two at a time, a task run an "
    "upload, the defaults otherwise; the same uploader actors and S3 server. Prefect's server "
    "(SQLite) is a process of its own. The clock stops when the night's state is known, its "
    "manifest, report and artifacts stored."
)


def run(job: Job, ray_folder: str, **options: Any) -> dict[str, Any]:
    """Options are `run_night`'s."""
    # As in a night of the user's: the lines of its log go to the server too.
    os.environ["PREFECT_LOGGING_LEVEL"] = "INFO"
    from rayorch_prefect.binding.prefect_server import PrefectServer, using_api
    from rayorch_prefect.binding.recording import ended_task_runs, wait_until_recorded
    from rayorch_prefect.binding.registry import watching

    with own_store(), PrefectServer(Path(ray_folder, "prefect")) as server:
        seeded(job.workload)
        OwnRay(job.workload, ray_folder)
        measuring = Measuring(job)
        with using_api(server.api_url), watching() as nights:
            state, at = asyncio.run(_night(declared(job), options))
            assert state.is_completed(), state.message
            recorded = wait_until_recorded(server, nights[0])
            task_runs = ended_task_runs(server, nights[0].id)
        return measuring.ended(published(), at, recorded=recorded, task_runs=task_runs)


async def _night(program: Program, options: dict[str, Any]) -> tuple[Any, float]:
    """The night's state and when it was known."""
    from prefect import flow

    from rayorch_prefect.binding.futures import flow_state
    from rayorch_prefect.flows.nightly import run_night

    settings = {"microbatch_size": 120, "upload_workers": UPLOADERS, **options}
    ends: list[float] = []

    @flow(name="bench", persist_result=False)
    async def bench() -> Any:
        state, _ = await run_night(program, str(SOURCE), str(DESTINATION), **settings)
        ends.append(time.time())
        return state

    return await flow_state(bench), ends[0]
