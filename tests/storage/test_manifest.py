from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.storage import (
    ManifestRow,
    RowOutcome,
    S3Location,
    manifest_location,
    read_manifest,
    write_part,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

STARTED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
FINISHED = datetime(2026, 1, 2, 3, 5, tzinfo=UTC)
ROWS = [
    ManifestRow(
        "s3://b/in/é.pdf",
        "e1",
        10,
        RowOutcome.PUBLISHED,
        output_keys=("out/in/é.pdf.md", "out/in/é.pdf.json"),
        sha256=("a" * 64, "b" * 64),
        children=4,
        missing=("1", "3/2"),
        attempts=2,
        started=STARTED,
        finished=FINISHED,
    ),
    ManifestRow(
        "s3://b/in/b.pdf", "e2", 0, RowOutcome.FAILED, "RecordFailure", "Encrypted", "a password"
    ),
    ManifestRow("s3://b/in/c.pdf", "e3", 5, RowOutcome.NOT_PROCESSED, reason="run cancelled"),
]


def test_parts_come_back_as_written(s3: S3Client, outgoing: S3Location) -> None:
    first = write_part(ROWS[:2], outgoing, "documents", "run-1")
    second = write_part(ROWS[2:], outgoing, "documents", "run-1", part=1)
    prefix = f"s3://{outgoing.bucket}/out/_rayorch/documents/manifests/run-1/"
    assert str(manifest_location(outgoing, "documents", "run-1")) == prefix
    assert [first, second] == [f"{prefix}part-00000.parquet", f"{prefix}part-00001.parquet"]
    table = read_manifest(prefix)
    assert table.num_rows == 3
    published, failed, left_out = table.to_pylist()
    assert published == {
        "uri": "s3://b/in/é.pdf",
        "etag": "e1",
        "size": 10,
        "row_outcome": "published",
        "kind": None,
        "type": None,
        "cause": None,
        "output_keys": ["out/in/é.pdf.md", "out/in/é.pdf.json"],
        "sha256": ["a" * 64, "b" * 64],
        "children": 4,
        "missing": ["1", "3/2"],
        "attempts": 2,
        "started": STARTED,
        "finished": FINISHED,
        "reason": None,
    }
    assert (failed["kind"], failed["type"], failed["output_keys"]) == (
        "RecordFailure",
        "Encrypted",
        [],
    )
    assert (left_out["row_outcome"], left_out["reason"]) == ("not_processed", "run cancelled")


def test_one_part_and_another_run_are_read_alone(s3: S3Client, outgoing: S3Location) -> None:
    part = write_part(ROWS[:1], outgoing, "documents", "run-1")
    write_part(ROWS[1:], outgoing, "documents", "run-1", part=1)
    write_part(ROWS, outgoing, "documents", "run-12")
    assert read_manifest(part).num_rows == 1
    assert read_manifest(str(manifest_location(outgoing, "documents", "run-1"))).num_rows == 3


def test_an_empty_part_keeps_the_columns(s3: S3Client, outgoing: S3Location) -> None:
    empty = read_manifest(write_part([], outgoing, "documents", "run-1"))
    full = read_manifest(write_part(ROWS, outgoing, "documents", "run-2"))
    assert empty.num_rows == 0
    assert empty.schema.equals(full.schema)


def test_a_manifest_that_is_not_there_is_named(
    s3: S3Client, bucket: str, outgoing: S3Location
) -> None:
    for uri in (f"s3://{bucket}/out/nothing/", f"s3://{bucket}/out/part-00000.parquet"):
        with pytest.raises(StoreError, match=r"no manifest part.*check the run id"):
            read_manifest(uri)
    with pytest.raises(UsageError, match="s3://"):
        read_manifest("/tmp/manifest")
    s3.put_object(Bucket=bucket, Key="out/x/part-00000.parquet", Body=b"not parquet")
    with pytest.raises(StoreError, match=r"out/x/part-00000.parquet is not a Parquet file"):
        read_manifest(f"s3://{bucket}/out/x/")
