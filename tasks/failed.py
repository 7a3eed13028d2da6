"""A source that failed before its upload as a task run."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.failed_runs import failed_state


@task(name="failed", task_run_name="failed {key}", cache_policy=NO_CACHE, persist_result=False)
async def failed(key: str, kind: str, cause: str) -> State[Any]:
    """Show that the source `key` failed: ends as Failed, named `kind`, with its cause."""
    return failed_state(kind, cause)
