"""The Engine's bound on pending values, from what its user asked for and the cluster has."""

from __future__ import annotations

import math

from rayorch_prefect.errors import UsageError
from rayorch_prefect.scheduler.credits import MIB, Bound

AUTO = "auto"
"""`max_pending_mb` as a share of the object store."""

# Ray begins to spill at 80 % (its `object_spilling_threshold`); estimates may be too low by 20 %.
SHARE_OF_STORE = 0.6

Wanted = tuple[int | None, float | str | None]


def checked_bound(max_pending: int | None, max_pending_mb: float | str | None) -> Wanted:
    """The two settings as they are. Raises UsageError, naming the setting and what is right."""
    if max_pending is not None and (isinstance(max_pending, bool) or max_pending < 1):
        raise UsageError(f"max_pending is {max_pending!r}; expected at least 1, or None (no bound)")
    if max_pending_mb is not None and max_pending_mb != AUTO:
        fits = isinstance(max_pending_mb, int | float) and not isinstance(max_pending_mb, bool)
        if not fits or not 0 < float(max_pending_mb) < math.inf:
            raise UsageError(
                f"max_pending_mb is {max_pending_mb!r}; expected more than 0 MiB, "
                f"{AUTO!r} or None (no bound)"
            )
    return max_pending, max_pending_mb


def bound_of(
    max_pending: int | None, max_pending_mb: float | str | None, store_bytes: float = 0.0
) -> Bound:
    """The bound on a cluster whose object store has so many bytes."""
    if max_pending_mb == AUTO:
        return Bound(max_pending, int(store_bytes * SHARE_OF_STORE) or None)
    return Bound(max_pending, None if max_pending_mb is None else int(float(max_pending_mb) * MIB))
