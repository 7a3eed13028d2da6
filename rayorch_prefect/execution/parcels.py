"""A function on its way to a parent's value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.execution.worker_actor import fetch, import_from, search_path


class Parcel:
    """A function, the addresses of a parent's value, and what else the function is given.

    Can be sent to any process of the cluster and opened there; it keeps the value alive. No
    dataclass, so that Prefect and prefect-ray, which walk through a task's parameters and fetch
    every reference that they find, leave the value where it is until it is opened.
    """

    __slots__ = ("_args", "_function", "_path", "_payload")

    def __init__(self, function: Callable[..., Any], parent: Parent, *args: Any) -> None:
        """Raises ParentNotCompleted if the parent has no value."""
        self._function = function
        self._payload = parent.require_payload()
        self._args = args
        self._path = search_path()

    def open(self) -> Any:
        """What `function(value, *args)` returns or raises, in a process of the cluster."""
        import_from(self._path)
        return self._function(self._payload.value(fetch), *self._args)


def cut_off(reference: Any) -> None:
    """End the Ray task that `reference` is the result of, with its process."""
    ray.cancel(reference, force=True)
