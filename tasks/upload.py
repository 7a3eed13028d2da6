"""The upload of one whole parent as a task run."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rayorch_prefect.binding.registry import find_night


@task(name="upload", task_run_name="upload {key}", cache_policy=NO_CACHE, persist_result=False)
def upload(night: str, microbatch: int, ordinal: int, key: str) -> Any:
    """Publish parent `ordinal` of the microbatch; bytes and content hash by output key.

    `key` is the source's, for the name of the task run. Ends as UploadFailed when the bounded
    tries are spent.
    """
    return find_night(night).microbatches[microbatch].upload(ordinal)
