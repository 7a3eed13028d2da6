from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import (
    LedgerEntry,
    RowOutcome,
    S3Location,
    Source,
    find_published,
    publish,
)
from tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FINGERPRINT = "0123456789abcdef" * 4
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def source(name: str, etag: str = "e1") -> Source:
    return Source(f"s3://b/in/{name}", etag, 1, f"in/{name}")


def entry(of: Source, **fields: Any) -> LedgerEntry:
    plain = {"children": 3, "missing": ("1", "3/2"), "attempts": 2, **fields}
    return LedgerEntry(of.uri, of.etag, FINGERPRINT, RowOutcome.PUBLISHED, **plain)


def stored(outgoing: S3Location, of: Source, value: Any, **fields: Any) -> LedgerEntry:
    said = entry(of, **fields)
    artifacts = publish(value, outgoing, of.key, entry=said).artifacts
    return dataclasses.replace(said, artifacts=artifacts)


def without_time(entry: LedgerEntry) -> LedgerEntry:
    return dataclasses.replace(entry, finished="")


def found(outgoing: S3Location, *sources: Source, since: datetime = LONG_AGO) -> list[LedgerEntry]:
    entries = find_published(outgoing, sources, FINGERPRINT, since)
    return [without_time(each) for each in entries]


def test_outputs_say_what_their_entry_would(s3: S3Client, outgoing: S3Location) -> None:
    sources = [source(name) for name in ("a.pdf", "a.pdf.b", "é x.pdf", "never.pdf", "k" * 250)]
    values: list[Any] = [
        {".md": "text", ".pages.json": {"n": 1}},
        b"bytes",
        {".x.y": "two dots alone"},
    ]
    right = [stored(outgoing, of, value) for of, value in zip(sources[:3], values, strict=True)]
    right.append(stored(outgoing, sources[4], "cut short"))
    assert found(outgoing, *sources) == [without_time(each) for each in right]


def test_what_was_written_before_or_is_of_another_source_is_not_taken(
    s3: S3Client, outgoing: S3Location
) -> None:
    stored(outgoing, source("a.pdf"), "text")
    publish("no entry", outgoing, "in/plain.pdf")
    assert len(found(outgoing, source("a.pdf"), source("plain.pdf"))) == 1
    assert found(outgoing, source("a.pdf", etag="e2")) == []
    assert find_published(outgoing, [source("a.pdf")], "f" * 64, LONG_AGO) == []
    later = datetime.now(UTC) + timedelta(hours=1)
    assert found(outgoing, source("a.pdf"), since=later) == []


def test_an_output_that_is_not_whole_is_not_taken(
    s3: S3Client, bucket: str, outgoing: S3Location
) -> None:
    for name, change in (("gone", None), ("changed", b"other")):
        said = stored(outgoing, source(name), {".md": "text", ".txt": "more"})
        s3.delete_object(Bucket=bucket, Key=said.artifacts[0].key)
        if change:
            s3.put_object(Bucket=bucket, Key=said.artifacts[0].key, Body=change)
        assert found(outgoing, source(name)) == []
    # The stamp is on the last: without it nothing is said.
    said = stored(outgoing, source("last"), {".md": "text", ".txt": "more"})
    s3.delete_object(Bucket=bucket, Key=said.artifacts[1].key)
    assert found(outgoing, source("last")) == []


def test_more_than_metadata_can_hold_is_not_said(s3: S3Client, outgoing: S3Location) -> None:
    many = tuple(str(number) for number in range(1000))
    stored(outgoing, source("a.pdf"), "text", missing=many)
    assert found(outgoing, source("a.pdf")) == []


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_no_permission_is_not_an_output_that_is_missing(
    outgoing: S3Location, proxy: FaultProxy
) -> None:
    stored(outgoing, source("a.pdf"), "text")
    proxy.on("HEAD", "a.pdf", answer=(403, "AccessDenied"))
    with pytest.raises(StoreError, match="403"):
        found(outgoing, source("a.pdf"))
