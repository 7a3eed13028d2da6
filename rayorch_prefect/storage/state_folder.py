"""Where a program keeps its records in a destination: `<destination>/_rayorch/<program>/`."""

from __future__ import annotations

from rayorch_prefect.storage.keys import STATE_FOLDER, escape_segment
from rayorch_prefect.storage.locations import S3Location


def state_location(destination: S3Location, program: str, *folders: str) -> S3Location:
    """The location below the state folder; each name is one segment, whatever it contains."""
    names = [STATE_FOLDER, *(escape_segment(name) for name in (program, *folders))]
    return destination.at(destination.prefix + "/".join(names) + "/")
