"""A store without space: a real one whose disk is full, and the words of others."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayorch_prefect.errors import StoreError, StoreUnavailable
from rayorch_prefect.storage import S3Location, Terms, publish
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.objects import get_object
from tests.fault_proxy import FaultProxy
from tests.small_disk import MB, fill, small_disk
from tests.stores import running_store

PLACE = S3Location("bucket", "out/")
PARTS = Terms(part_bytes=5 * MB)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The disk of the store that this process now uses."""
    with small_disk(24) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        with running_store("rclone") as store:
            store.use(monkeypatch)
            monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
            s3_client().create_bucket(Bucket=PLACE.bucket)
            yield disk


def test_what_a_full_store_does_not_take_can_be_published_once_there_is_space(disk: Path) -> None:
    publish(b"kept" * 1000, PLACE, "in/a")
    ballast = fill(disk, but=20_000)
    for content in (b"whole" * 20_000, b"in parts" * MB):
        with pytest.raises(StoreUnavailable, match=r"could not write s3://.*b\.bin.*disk full\?"):
            publish(content, PLACE, "in/b", PARTS)
    assert get_object(PLACE, "out/in/b.bin") is None
    assert get_object(PLACE, "out/in/a.bin") == b"kept" * 1000

    ballast.unlink()
    publish(b"in parts" * MB, PLACE, "in/b", PARTS)
    assert get_object(PLACE, "out/in/b.bin") == b"in parts" * MB


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (507, "InsufficientStorage"),
        (507, "XMinioStorageFull"),
        (507, "AWordOfItsOwn"),
        (400, "XMinioAdminBucketQuotaExceeded"),
        (403, "QuotaExceeded"),
    ],
)
def test_a_store_that_says_so_is_told_apart(
    outgoing: S3Location, proxy: FaultProxy, status: int, code: str
) -> None:
    proxy.on("PUT", "/out/in/b", answer=(status, code))
    with pytest.raises(StoreError, match=rf"{code}.*the store has no space left, or the bucket's"):
        publish(b"x", outgoing, "in/b")
    publish(b"x", outgoing, "in/a")
    assert proxy.count("PUT", "/out/in/b") == 1  # asking at once again gives it no space
