"""Asking a Prefect server what it has recorded; it records task runs in the background."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until

RECORD_SECONDS = 60.0
MISSING_SECONDS = 10.0

_ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]


def wait_until_recorded(
    server: PrefectServer, night: Night, seconds: float = RECORD_SECONDS
) -> bool:
    """Wait for the ends of all task runs of the night's microbatches; False if some are missing.

    A local server that is stopped earlier loses them.
    """

    def recorded() -> bool:
        with suppress(httpx.HTTPError):
            return ended_task_runs(server, night.id) >= _expected(night)
        return False

    return wait_until(recorded, seconds)


def ended_task_runs(server: PrefectServer, night_id: str) -> int:
    """How many task runs of the night's child flow runs the server shows as ended."""
    url = f"{server.api_url}/task_runs/count"
    answer = httpx.post(url, json=_question(night_id), trust_env=False)
    answer.raise_for_status()
    return int(answer.json())


async def note_missing(night: Night, seconds: float = MISSING_SECONDS) -> None:
    """Count the task runs whose ends Prefect does not have, where its server was away meanwhile.

    Says so in the run's log; the night's outcome does not depend on them.
    """
    if not night.prefect_away or night.stop.reason:
        return
    until = time.monotonic() + seconds
    missing = await _missing(night)
    while missing and time.monotonic() < until:
        await asyncio.sleep(0.5)
        missing = await _missing(night)
    night.task_runs_missing = missing
    get_run_logger().warning(
        "Prefect's server was away for a time: %s of %d task runs of this night are not recorded; "
        "the manifest is complete",
        "an unknown number" if missing is None else missing,
        _expected(night),
    )


async def _missing(night: Night) -> int | None:
    """None if the server does not say."""
    try:
        async with get_client() as client:
            answer = await client.request("POST", "/task_runs/count", json=_question(night.id))
        return max(0, _expected(night) - int(answer.json()))
    except (httpx.HTTPError, ValueError):
        return None


def _expected(night: Night) -> int:
    batches = night.microbatches
    shown = sum(batch.failed_runs.begun for batch in batches if batch.failed_runs)
    return night.uploads + shown + sum(batch.part_written for batch in batches)


def _question(night_id: str) -> dict[str, Any]:
    return {
        "flow_runs": {"parent_flow_run_id": {"any_": [night_id]}},
        "task_runs": {"state": {"type": {"any_": _ENDED}}},
    }
