"""Writing manifest parts as task runs."""

from __future__ import annotations

import asyncio

from prefect import task
from prefect.cache_policies import NO_CACHE

from rayorch_prefect.binding.registry import find_night

_RETRIES = 2


@task(
    name="manifest",
    task_run_name="manifest of microbatch {microbatch}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=_RETRIES,
    retry_delay_seconds=1,
)
async def write_part(night: str, microbatch: int) -> str:
    """Store the manifest part of one microbatch; its URI."""
    return await asyncio.to_thread(find_night(night).microbatches[microbatch].write_manifest_part)


@task(
    name="manifest",
    task_run_name="manifest of the night",
    cache_policy=NO_CACHE,
    persist_result=False,
    retries=_RETRIES,
    retry_delay_seconds=1,
)
async def write_last_part(night: str) -> str:
    """Store the part of the rows that no microbatch wrote; the manifest's URI."""
    return await asyncio.to_thread(find_night(night).write_last_part)
