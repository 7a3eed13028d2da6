from __future__ import annotations

import io
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayorch_prefect.errors import ProgramError, StoreError
from rayorch_prefect.storage import S3Location, encode, list_sources, publish
from rayorch_prefect.storage import objects as objects_module
from tests.fault_proxy import FaultProxy
from tests.storage.conftest import Serve

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def test_every_artifact_is_stored_hashed_and_reported(
    s3: S3Client, bucket: str, outgoing: S3Location
) -> None:
    published = publish({".md": "# Ü", ".json": {"a": [1]}}, outgoing, "in/a.pdf")
    assert [artifact.key for artifact in published.artifacts] == [
        "out/in/a.pdf.md",
        "out/in/a.pdf.json",
    ]
    for artifact, content in zip(published.artifacts, ("# Ü".encode(), b'{"a":[1]}'), strict=True):
        stored = s3.get_object(Bucket=bucket, Key=artifact.key)
        assert stored["Body"].read() == content
        assert artifact.uri == f"s3://{bucket}/{artifact.key}"
        assert artifact.size == len(content)
        assert artifact.sha256 == sha256(content).hexdigest()
        # Some stores change the case of the name.
        assert [*stored["Metadata"].values()] == [artifact.sha256]
        assert artifact.etag == stored["ETag"].strip('"')
    assert published.size == sum(artifact.size for artifact in published.artifacts)


def test_publishing_again_replaces(s3: S3Client, bucket: str, outgoing: S3Location) -> None:
    publish("one", outgoing, "in/a")
    publish("two", outgoing, "in/a")
    (source,) = list_sources(outgoing)
    assert source.read() == b"two"


@pytest.mark.parametrize(
    ("value", "suffix", "content", "content_type"),
    [
        (b"\x00\xff", ".bin", b"\x00\xff", "application/octet-stream"),
        (bytearray(b"x"), ".bin", b"x", "application/octet-stream"),
        ("é", ".txt", "é".encode(), "text/plain; charset=utf-8"),
        ({"b": 1, "a": "é"}, ".json", '{"b":1,"a":"é"}'.encode(), "application/json"),
        ([], ".json", b"[]", "application/json"),
        (None, ".json", b"null", "application/json"),
        ({}, ".json", b"{}", "application/json"),
        ({1: 2}, ".json", b'{"1":2}', "application/json"),
    ],
)
def test_each_type_has_its_suffix(
    value: object, suffix: str, content: bytes, content_type: str
) -> None:
    assert encode(value) == [(suffix, content, content_type)]


def test_a_table_becomes_parquet() -> None:
    table = pa.table({"page": [0, 1], "text": ["a", None]})
    ((suffix, content, _),) = encode(table)
    assert suffix == ".parquet"
    assert pq.read_table(io.BytesIO(content)).equals(table)


def test_a_mapping_of_suffixes_may_hold_each_type() -> None:
    mapping = {
        ".md": "x",
        ".pages.json": [1],
        ".png": b"p",
        ".csv": b"a,b",
        ".p.parquet": pa.table({}),
    }
    encoded = encode(mapping)
    assert [suffix for suffix, _, _ in encoded] == list(mapping)
    assert [kind for _, _, kind in encoded] == [
        "text/markdown; charset=utf-8",
        "application/json",
        "image/png",
        "text/csv; charset=utf-8",
        "application/vnd.apache.parquet",
    ]


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        float("nan"),
        {"a": [float("inf")]},
        {".md": "x", "title": "y"},
        {".md": object()},
        "\ud800",
        {("a", "b"): 1},
    ],
)
def test_another_value_is_refused_with_what_is_allowed(value: object) -> None:
    with pytest.raises(ProgramError, match=r"bytes, str, a JSON-able value, a pyarrow Table"):
        encode(value)


def test_nothing_is_stored_of_a_value_with_one_bad_part(s3: S3Client, outgoing: S3Location) -> None:
    with pytest.raises(ProgramError):
        publish({".md": "x", ".json": object()}, outgoing, "in/a")
    with pytest.raises(ProgramError):
        publish({".md": "x", ".a/b": "y"}, outgoing, "in/a")
    assert list(list_sources(outgoing)) == []


def test_a_missing_bucket_names_the_output(s3: S3Client) -> None:
    with pytest.raises(StoreError, match=r"write s3://no-such-bucket/out/in/a.txt: NoSuchBucket"):
        publish("x", S3Location("no-such-bucket", "out/"), "in/a")


def test_an_object_above_the_limit_is_refused(
    s3: S3Client, outgoing: S3Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects_module, "MAX_OBJECT_BYTES", 3)
    with pytest.raises(StoreError, match="5 TiB limit"):
        publish("four", outgoing, "in/a")
    assert list(list_sources(outgoing)) == []


class _Lossy(BaseHTTPRequestHandler):
    """Takes every upload, says it is fine, and keeps two bytes of it."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer("0")

    def do_HEAD(self) -> None:
        self.answer("2")

    def answer(self, length: str) -> None:
        self.send_response(200)
        self.send_header("ETag", '"kept"')
        self.send_header("Content-Length", length)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_upload_that_is_cut_is_seen(odd_server: Serve) -> None:
    odd_server(_Lossy)
    with pytest.raises(StoreError, match=r"in/a.txt has 2 bytes after 4 were written"):
        publish("four", S3Location("bucket", "out/"), "in/a")


def test_an_upload_that_may_not_be_looked_at_is_not_taken_for_done(
    outgoing: S3Location, proxy: FaultProxy
) -> None:
    proxy.on("HEAD", answer=(403, "AccessDenied"))
    with pytest.raises(StoreError, match=r"write .*in/a.txt: 403 Forbidden; the credentials may"):
        publish("four", outgoing, "in/a")


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
def test_a_destination_that_the_store_refuses_names_the_key(bucket: str) -> None:
    with pytest.raises(StoreError, match=r"out//deep/in/a.txt: InvalidArgument.*another prefix"):
        publish("x", S3Location(bucket, "out//deep/"), "in/a")


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
def test_an_output_below_another_is_refused_alone(outgoing: S3Location) -> None:
    publish("x", outgoing, "in/a")
    with pytest.raises(StoreError, match=r"out/in/a.txt/b.txt: InternalError.*objects as files"):
        publish("y", outgoing, "in/a.txt/b")
    assert [source.key for source in list_sources(outgoing)] == ["out/in/a.txt"]
