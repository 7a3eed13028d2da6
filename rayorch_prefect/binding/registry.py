"""The nights that run in this process, by the id of their flow run.

Child flows and tasks get ids and indexes as parameters and look the rest up here: so the stored
parameters stay small, and Prefect neither walks, hashes nor stores sources and references.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rayorch_prefect.errors import UsageError

if TYPE_CHECKING:
    from rayorch_prefect.binding.night import Night

_open: dict[str, Night] = {}
_watchers: list[list[Night]] = []


@contextmanager
def opened(night: Night) -> Iterator[Night]:
    """Make the night findable by its id while it runs."""
    _open[night.id] = night
    for watcher in _watchers:
        watcher.append(night)
    try:
        yield night
    finally:
        _open.pop(night.id, None)


@contextmanager
def watching() -> Iterator[list[Night]]:
    """A list that every night opened in this process meanwhile is added to, and stays in."""
    nights: list[Night] = []
    _watchers.append(nights)
    try:
        yield nights
    finally:
        _watchers.remove(nights)


def find_night(night_id: str) -> Night:
    """The running night. Raises UsageError if it does not run in this process."""
    try:
        return _open[night_id]
    except KeyError:
        raise UsageError(
            f"night {night_id} does not run in this process: microbatches and their tasks are "
            "started by the nightly flow, not by themselves; run the nightly flow again"
        ) from None
