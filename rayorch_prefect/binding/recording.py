"""Asking a Prefect server what it has recorded; it records task runs in the background."""

from __future__ import annotations

import httpx

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until

RECORD_SECONDS = 60.0

_ENDED = ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]


def wait_until_recorded(
    server: PrefectServer, night: Night, seconds: float = RECORD_SECONDS
) -> bool:
    """Wait for the ends of all task runs of the night's microbatches; False if some are missing.

    A local server that is stopped earlier loses them.
    """
    parts = sum(batch.part_written for batch in night.microbatches)
    expected = night.uploads + parts
    return wait_until(lambda: ended_task_runs(server, night.id) >= expected, seconds)


def ended_task_runs(server: PrefectServer, night_id: str) -> int:
    """How many task runs of the night's child flow runs the server shows as ended."""
    body = {
        "flow_runs": {"parent_flow_run_id": {"any_": [night_id]}},
        "task_runs": {"state": {"type": {"any_": _ENDED}}},
    }
    answer = httpx.post(f"{server.api_url}/task_runs/count", json=body, trust_env=False)
    answer.raise_for_status()
    return int(answer.json())
