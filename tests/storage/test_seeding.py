"""A bucket filled from memory and copied to disk."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import S3Location, list_sources
from rayorch_prefect.storage.seeding import copy_to_folder, seed
from tests.stores import Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def test_seeding_makes_the_bucket_once_and_copies_come_back(s3: S3Client, tmp_path: Path) -> None:
    location = S3Location(f"bucket-{uuid.uuid4().hex[:12]}", "in/")
    seed(location, {"a.pdf": b"old", "b.pdf": b"b"}, "application/pdf")
    seed(location, {"a.pdf": b"a", "deep/c.pdf": b"c"}, "application/pdf")
    seed(S3Location(location.bucket, "else/"), {"d.pdf": b"d"}, "application/pdf")

    count = copy_to_folder(location, tmp_path)

    assert [source.key for source in list_sources(location)] == [
        "in/a.pdf",
        "in/b.pdf",
        "in/deep/c.pdf",
    ]
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*.pdf")}
    assert (count, found) == (3, {"a.pdf": b"a", "b.pdf": b"b", "deep/c.pdf": b"c"})
    head = s3.head_object(Bucket=location.bucket, Key="in/a.pdf")
    assert head["ContentType"] == "application/pdf"


def test_a_key_that_leaves_the_folder_is_refused(
    s3: S3Client, s3_store: Store, bucket: str, tmp_path: Path
) -> None:
    if s3_store.keeps_files:
        pytest.skip("this store refuses such a key itself")
    s3.put_object(Bucket=bucket, Key="in/x/../../../evil", Body=b"")
    with pytest.raises(StoreError, match="outside of"):
        copy_to_folder(S3Location(bucket, "in/"), tmp_path / "out")
    assert not list(tmp_path.parent.glob("evil"))
