"""The upload of whole parents as a task run."""

from __future__ import annotations

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rayorch_prefect.binding.near_uploads import publish_near
from rayorch_prefect.binding.registry import find_night
from rayorch_prefect.execution.parcels import Parcel


@task(name="upload", task_run_name="upload {keys}", cache_policy=NO_CACHE, persist_result=False)
def upload(night: str, microbatch: int, ordinals: list[int], keys: str) -> Any:
    """Publish these parents of the microbatch; bytes and content hash by output key.

    `keys` names the sources, for the name of the task run. Ends as UploadFailed when the bounded
    tries of one are spent; the others are published all the same.
    """
    return find_night(night).microbatches[microbatch].upload(ordinals)


@task(name="upload", task_run_name="upload {keys}", cache_policy=NO_CACHE, persist_result=False)
def upload_near(parcels: dict[int, Parcel], domain: str, keys: str, tries: int) -> Any:
    """Publish these parents from a Ray worker near their values, and end as `upload` does.

    `parcels` by ordinal; `domain` is the parents'; each gets up to `tries`. Returns each one's row.
    """
    return publish_near(parcels, domain, tries)
