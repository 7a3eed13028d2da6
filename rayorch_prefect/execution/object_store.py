"""Values that Ray's object store does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError, RayTaskError
from ray.experimental.locations import get_local_object_locations

from rayorch_prefect.errors import ObjectStoreFull
from rayorch_prefect.execution.codec import LARGE_CHUNK

FULL = (ObjectStoreFullError, OutOfDiskError)

_AT_ONCE_S = 5.0
_WHAT_TO_DO = (
    "free the disk of Ray's temporary folder (values that its memory cannot hold go there), give "
    "Ray more object_store_memory, run fewer or smaller microbatches, or let the stage return "
    "less, such as where the bytes are instead of the bytes"
)


def put(data: Any) -> Any:
    """Store an object; its reference. Raises ObjectStoreFull."""
    try:
        return ray.put(data)
    except FULL as error:
        raise ObjectStoreFull(f"{first_line(error)}; {_WHAT_TO_DO}") from error


def full(error: BaseException | None) -> str | None:
    """What to say and do if the object store did not take something; None for other errors."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{first_line(cause)}; {_WHAT_TO_DO}" if isinstance(cause, FULL) else None


def unstored(returned: Sequence[Any]) -> str | None:
    """Why one of these large returns of a task that has ended is not there; None if all are.

    A worker answers before Ray stores what it returned: in place of what does not fit stands a
    small error. Fetches no value.
    """
    # The answer is there a moment before Ray has written down the returns after it.
    ray.wait(list(returned), num_returns=len(returned), timeout=_AT_ONCE_S, fetch_local=False)
    found = get_local_object_locations(list(returned))
    for ref in returned:
        size = found.get(ref, {}).get("object_size")
        if size is not None and size < LARGE_CHUNK and (error := _error(ref)) is not None:
            return full(error) or f"{type(error).__name__}: {first_line(error)}"
    return None


def first_line(error: BaseException | None) -> str:
    """What Ray said, without its advice."""
    return str(error).strip().partition("\n")[0]


def _error(ref: Any) -> RayError | None:
    try:
        ray.get(ref, timeout=_AT_ONCE_S)
    except RayError as error:
        return error
    return None
