"""The manifest of a run: what became of each source row, as Parquet.

`<destination>/_rayorch/<program>/manifests/<run id>/part-00000.parquet`; a microbatch writes its
own part, so that no part waits for another.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.storage.access import Access
from rayorch_prefect.storage.encoding import parquet_bytes
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import get_object, put_object
from rayorch_prefect.storage.row_outcomes import RowOutcome
from rayorch_prefect.storage.state_folder import state_location

if TYPE_CHECKING:
    import pyarrow as pa

_PART = re.compile(r"part-(\d{5,})\.parquet")


def load_parquet() -> None:
    """Import what writes manifests, which takes most of a second the first time.

    pyarrow looks for pandas as it makes its first table.
    """
    import pyarrow.parquet  # noqa: F401

    _table(())


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One source row of a run.

    `size` is the source's, in bytes; `output_keys` and `sha256` (hex) run side by side;
    `children` counts the direct children; `missing` holds the gaps as ordinal paths ("1",
    "3/2"); `started` and `finished` are aware datetimes; `reason` says why it was not processed.
    """

    uri: str
    etag: str
    size: int
    row_outcome: RowOutcome
    kind: str | None = None
    type: str | None = None
    cause: str | None = None
    output_keys: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    children: int = 0
    missing: tuple[str, ...] = ()
    attempts: int = 0
    started: datetime | None = None
    finished: datetime | None = None
    reason: str | None = None


def manifest_location(destination: S3Location, program: str, run_id: str) -> S3Location:
    """Where the parts of one run lie; its text is the manifest's URI."""
    return state_location(destination, program, "manifests", run_id)


def write_part(
    rows: Iterable[ManifestRow],
    destination: S3Location,
    program: str,
    run_id: str,
    part: int = 0,
) -> str:
    """Store `rows` as one part, replacing it if it exists; the part's URI. Raises StoreError."""
    location = manifest_location(destination, program, run_id)
    key = f"{location.prefix}part-{part:05d}.parquet"
    content = parquet_bytes(_table(rows))
    return put_object(location, key, content, "application/vnd.apache.parquet").uri


def empty_other_parts(
    destination: S3Location, program: str, run_id: str, parts: Container[int]
) -> None:
    """Leave no rows in parts other than these: an earlier try of the same run wrote them.

    Raises StoreError.
    """
    location = manifest_location(destination, program, run_id)
    names = [key.removeprefix(location.prefix) for key in list_keys(location)]
    for found in filter(None, map(_PART.fullmatch, names)):
        if (part := int(found.group(1))) not in parts:
            write_part([], destination, program, run_id, part)


def read_manifest(uri: str, access: Access | None = None) -> pa.Table:
    """All rows below a manifest's URI, or of one part, in the order of the parts.

    `access` is that of the destination.

    Raises UsageError for a URI that is none, StoreError if there is no part or one is unreadable.
    """
    import pyarrow as pa

    location = replace(S3Location.parse(uri), access=access)
    single = location.prefix.removesuffix("/")
    if single.endswith(".parquet"):
        keys = [single]
    else:
        keys = sorted(key for key in list_keys(location) if key.endswith(".parquet"))
    if not keys:
        raise StoreError(f"no manifest part under {location}; check the run id")
    return pa.concat_tables([_read_part(location, key) for key in keys])


def children_in(place: str) -> list[int]:
    """How many children each source had that had some, as a manifest says: at its URI, or in a
    local file or folder of parts.

    Raises UsageError for a place that is none, StoreError if there is no part or one is unreadable.
    """
    import pyarrow as pa

    if place.startswith("s3://"):
        table = read_manifest(place)
    else:
        path = Path(place)
        parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not all(part.is_file() for part in parts) or not parts:
            raise UsageError(f"{place} is neither an s3:// manifest nor a Parquet file of one")
        table = pa.concat_tables([_parsed(part.read_bytes(), str(part)) for part in parts])
    if "children" not in table.column_names:
        raise UsageError(f"{place} is no manifest: it has no column children")
    return [count for count in table.column("children").to_pylist() if count]


def _read_part(location: S3Location, key: str) -> pa.Table:
    content = get_object(location, key)
    if content is None:
        raise StoreError(f"no manifest part at {location.uri_of(key)}; check the run id")
    return _parsed(content, location.uri_of(key))


def _parsed(content: bytes, where: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(pa.BufferReader(content))
    except pa.ArrowInvalid as error:
        raise StoreError(f"{where} is not a Parquet file: {error}") from error


def _table(rows: Iterable[ManifestRow]) -> pa.Table:
    import pyarrow as pa

    listed = list(rows)
    names = [each.name for each in fields(ManifestRow)]
    columns = {name: [_plain(getattr(row, name)) for row in listed] for name in names}
    return pa.table(columns, schema=_schema())


def _plain(value: object) -> object:
    return value.value if isinstance(value, RowOutcome) else value


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    moment = pa.timestamp("us", tz="UTC")
    columns: list[tuple[str, pa.DataType]] = [
        ("uri", text),
        ("etag", text),
        ("size", number),
        ("row_outcome", text),
        ("kind", text),
        ("type", text),
        ("cause", text),
        ("output_keys", pa.list_(text)),
        ("sha256", pa.list_(text)),
        ("children", number),
        ("missing", pa.list_(text)),
        ("attempts", number),
        ("started", moment),
        ("finished", moment),
        ("reason", text),
    ]
    return pa.schema(columns)
