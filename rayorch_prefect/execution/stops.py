"""Why a run cannot go on, as an error for whoever waits for it."""

from __future__ import annotations

from rayorch_prefect.errors import BackendDown, RayorchError, StageStartError
from rayorch_prefect.model.events import StopRun


def error_of(stop: StopRun) -> RayorchError:
    """The error that a stop ends all open runs with."""
    if stop.backend:
        return BackendDown(
            f"stage {stop.stage}: the service or disk behind it stays down; the last failure "
            f"was {stop.message}. See to it and run again, or give the stage another "
            "backend_patience_s"
        )
    return StageStartError(
        f"stage {stop.stage}: its workers could not be built or died before their first batch, "
        f"several in a row; the last one said: {stop.message}"
    )
