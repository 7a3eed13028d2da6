"""The nights of a program that left files in a destination, each in the folder of its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from rayorch_prefect.storage.listing import list_times
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.manifest import manifest_location
from rayorch_prefect.storage.reports import report_uri
from rayorch_prefect.storage.state_folder import state_location


@dataclass(frozen=True, slots=True)
class NightFiles:
    """What a night left beside its outputs.

    `manifest` is a URI for `read_manifest`, `report` that of the page, empty if there is none;
    `written` is when the newest of them was, by the store's clock.
    """

    run_id: str
    manifest: str
    report: str
    written: datetime


def night_files(
    destination: S3Location, program: str, run_id: str | None = None
) -> NightFiles | None:
    """The files of this night, or of the last one that wrote; None if there is none.

    Raises StoreError.
    """
    folder = state_location(destination, program, "manifests")
    place = manifest_location(destination, program, run_id) if run_id else folder
    found = dict(list_times(place))
    run = newest_run((key.removeprefix(folder.prefix), at) for key, at in found.items())
    if run is None:
        return None
    report = report_uri(destination, program, run)
    manifest = manifest_location(destination, program, run)
    return NightFiles(
        run,
        str(manifest),
        report if any(manifest.uri_of(key) == report for key in found) else "",
        max(at for key, at in found.items() if key.startswith(manifest.prefix)),
    )


def newest_run(found: Iterable[tuple[str, datetime]]) -> str | None:
    """The run id of the newest part; `found` are `<run id>/<name>` and when it was written."""
    parts = [(at, key.partition("/")[0]) for key, at in found if key.endswith(".parquet")]
    return max(parts)[1] if parts else None
