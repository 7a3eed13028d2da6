"""Planning a night as a task run."""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rayorch_prefect.binding.registry import find_night


@task(name="plan", task_run_name="plan", cache_policy=NO_CACHE, persist_result=False)
async def plan_night(night: str) -> dict[str, Any]:
    """Probe and sweep the store, list the sources, subtract the ledger, cut microbatches; counts.

    The sweep closes what runs that died left open.
    """
    planned, run_logger = find_night(night), get_run_logger()
    run_logger.info("%s", await asyncio.to_thread(planned.probe))
    if planned.left:
        run_logger.warning("%s", planned.left)
    if swept := await asyncio.to_thread(planned.sweep):
        run_logger.info("%s", swept)
    return await asyncio.to_thread(planned.plan)
