from __future__ import annotations

import dataclasses
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import SourceChanged, SourceMissing, StoreError
from rayorch_prefect.storage import S3Location, Source, list_sources
from tests.storage.conftest import Serve

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture
def listed(s3: S3Client, bucket: str, incoming: S3Location) -> Source:
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"first")
    (source,) = list_sources(incoming)
    return source


def test_the_listed_content_is_read(listed: Source) -> None:
    assert listed.read() == b"first"


def test_changed_content_is_never_read(s3: S3Client, bucket: str, listed: Source) -> None:
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"other")
    with pytest.raises(SourceChanged, match=listed.uri):
        listed.read()


def test_a_vanished_source_is_missing(s3: S3Client, bucket: str, listed: Source) -> None:
    s3.delete_object(Bucket=bucket, Key="in/a")
    with pytest.raises(SourceMissing, match=listed.uri):
        listed.read()


def test_another_size_is_a_change(listed: Source) -> None:
    with pytest.raises(SourceChanged, match="5 bytes instead of 6"):
        dataclasses.replace(listed, size=6).read()


def test_a_missing_bucket_is_no_missing_source(listed: Source) -> None:
    lost = dataclasses.replace(listed, uri="s3://no-such-bucket/in/a")
    with pytest.raises(StoreError, match="NoSuchBucket") as caught:
        lost.read()
    assert not isinstance(caught.value, SourceMissing)


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_a_pinned_version_outlives_a_change(s3: S3Client, bucket: str) -> None:
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket=bucket, Key="in/a", Body=b"first")
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"other")
    etag = first["ETag"].strip('"')
    source = Source(f"s3://{bucket}/in/a", etag, 5, "in/a", first["VersionId"])
    assert source.pin == first["VersionId"]
    assert source.read() == b"first"


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
def test_a_version_where_there_are_none_is_no_missing_source(listed: Source) -> None:
    with pytest.raises(StoreError, match=f"read {listed.uri}: NotImplemented") as caught:
        dataclasses.replace(listed, version="v1").read()
    assert not isinstance(caught.value, SourceMissing)


class _Careless(BaseHTTPRequestHandler):
    """Answers every GET alike: no conditions honoured, the first body broken off if asked."""

    break_off = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"now"')
        self.send_header("Content-Length", "5")
        self.end_headers()
        if type(self).break_off:
            type(self).break_off -= 1
            self.wfile.write(b"ot")
            self.close_connection = True
        else:
            self.wfile.write(b"other")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def careless(odd_server: Serve) -> type[_Careless]:
    odd_server(_Careless)
    _Careless.break_off = 0
    return _Careless


def test_a_store_that_ignores_conditions_is_seen_through(careless: type[_Careless]) -> None:
    with pytest.raises(SourceChanged, match="ETag now"):
        Source("s3://bucket/in/a", "then", 5, "in/a").read()


def test_a_body_that_breaks_off_is_asked_for_again(careless: type[_Careless]) -> None:
    careless.break_off = 2
    assert Source("s3://bucket/in/a", "now", 5, "in/a").read() == b"other"


def test_a_body_that_always_breaks_off_is_an_error(careless: type[_Careless]) -> None:
    careless.break_off = 99
    with pytest.raises(StoreError, match="could not read s3://bucket/in/a"):
        Source("s3://bucket/in/a", "now", 5, "in/a").read()
