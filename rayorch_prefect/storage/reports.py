"""The report of a run, a page beside the parts of its manifest."""

from __future__ import annotations

from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.manifest import manifest_location
from rayorch_prefect.storage.objects import put_object

_NAME = "report.html"


def report_uri(destination: S3Location, program: str, run_id: str) -> str:
    """Where the report of this run lies."""
    location = manifest_location(destination, program, run_id)
    return location.uri_of(location.prefix + _NAME)


def write_report(page: str, destination: S3Location, program: str, run_id: str) -> str:
    """Store the HTML `page`, replacing an earlier one of the run; its URI. Raises StoreError."""
    location = manifest_location(destination, program, run_id)
    content = page.encode("utf-8", "replace")
    return put_object(location, location.prefix + _NAME, content, "text/html; charset=utf-8").uri
