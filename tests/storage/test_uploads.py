"""Uploads whole and in parts, through a proxy that breaks them."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import fields, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

import pytest

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.storage import S3Location, StoreFeatures, Terms, publish, sweep_uploads
from tests.fault_proxy import FaultProxy
from tests.storage.conftest import Serve
from tests.stores import Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MIB = 1024**2
PARTS = 3
LARGE = b"0123456789abcdef" * (12 * MIB // 16)
KEY = "out/in/a.bin"
_SEEN: Any = {each.name: False for each in fields(StoreFeatures) if each.type == "bool"}
UNSEEN = StoreFeatures("", **_SEEN)


@pytest.fixture
def notes(bucket: str) -> S3Location:
    return S3Location(bucket, "out/_rayorch/toy/uploads/")


@pytest.fixture
def in_parts(notes: S3Location, monkeypatch: pytest.MonkeyPatch) -> Terms:
    """Terms by which LARGE goes in three parts; requests are tried twice."""
    monkeypatch.setenv("RAYORCH_PREFECT_PART_BYTES", str(5 * MIB))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    return Terms.of(UNSEEN, notes)


Left = Callable[[], list[str]]


@pytest.fixture
def left(s3: S3Client, bucket: str) -> Left:
    """What is in the bucket: keys, and `upload of <key>` for each upload that is open."""

    def look() -> list[str]:
        found = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        try:
            still = s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        except s3.exceptions.NoSuchUpload:
            still = []  # rclone's word for a bucket that never had any
        uploads = [f"upload of {each.get('Key')}" for each in still]
        return sorted([each.get("Key", "") for each in found] + uploads)

    return look


def stored(s3: S3Client, bucket: str) -> bytes:
    return s3.get_object(Bucket=bucket, Key=KEY)["Body"].read()


@pytest.mark.parametrize("mode", ["when_required", "when_supported"])
def test_a_long_content_goes_in_parts(
    s3: S3Client,
    bucket: str,
    outgoing: S3Location,
    in_parts: Terms,
    proxy: FaultProxy,
    left: Left,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", mode)
    (artifact,) = publish(LARGE, outgoing, "in/a", in_parts).artifacts
    assert (artifact.size, artifact.sha256) == (len(LARGE), sha256(LARGE).hexdigest())
    assert stored(s3, bucket) == LARGE
    assert left() == [KEY]
    parts = [seen for seen in proxy.seen if "partNumber=" in seen.target]
    assert [seen.status for seen in parts] == [200] * PARTS
    summed = ["x-amz-checksum-crc32" in seen.headers for seen in parts]
    assert summed == [mode == "when_supported"] * PARTS
    assert proxy.count("GET", f"/{KEY}") == 0, "hashes were compared, not contents"


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId="), ("HEAD", KEY)],
)
def test_an_upload_in_parts_that_fails_leaves_nothing_open(
    outgoing: S3Location,
    in_parts: Terms,
    proxy: FaultProxy,
    notes: S3Location,
    left: Left,
    method: str,
    target: str,
) -> None:
    rule = proxy.on(method, target, answer=(500, "InternalError"))
    with pytest.raises(StoreError, match="the store failed on its side"):
        publish(LARGE, outgoing, "in/a", in_parts)
    assert rule.hits == 2
    assert_noted_until_the_next_run(notes, left, [KEY] if method == "HEAD" else [], target)


def assert_noted_until_the_next_run(
    notes: S3Location, left: Left, keys: list[str], target: str
) -> None:
    """One more upload may come to be when the answer to the first request for one was none."""
    for forget_late in (None, False):
        if forget_late is not None:
            sweep_uploads(notes, forget_late=forget_late)
        found = [key for key in left() if not key.startswith(notes.prefix)]
        assert found == keys
        assert len(left()) - len(keys) == (target == "uploads")
    sweep_uploads(notes)
    assert left() == keys


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId="), ("DELETE", "/uploads/")],
)
def test_a_lost_answer_loses_and_doubles_nothing(
    s3: S3Client,
    bucket: str,
    outgoing: S3Location,
    in_parts: Terms,
    proxy: FaultProxy,
    notes: S3Location,
    left: Left,
    method: str,
    target: str,
) -> None:
    proxy.on(method, target, times=1, cut="reply")
    terms = replace(in_parts, conditional=True)
    publish(LARGE, outgoing, "in/a", terms)
    assert stored(s3, bucket) == LARGE
    assert_noted_until_the_next_run(notes, left, [KEY], target)


@pytest.mark.parametrize("conditional", [False, True])
def test_a_lost_answer_to_a_whole_upload(
    s3: S3Client, bucket: str, outgoing: S3Location, proxy: FaultProxy, conditional: bool
) -> None:
    s3.put_object(Bucket=bucket, Key=KEY, Body=b"earlier")
    proxy.on("PUT", KEY, times=2, cut="reply")
    publish(b"new", outgoing, "in/a", Terms(conditional))
    assert stored(s3, bucket) == b"new"


@pytest.mark.parametrize(("cut", "at"), [("request", 0), ("upload", 2 * MIB), ("upload", 1)])
def test_a_body_that_breaks_off_is_sent_again(
    s3: S3Client,
    bucket: str,
    outgoing: S3Location,
    in_parts: Terms,
    proxy: FaultProxy,
    left: Left,
    cut: Any,
    at: int,
) -> None:
    rule = proxy.on("PUT", "partNumber=2", times=1, cut=cut, cut_at=at)
    whole = proxy.on("PUT", "/b.bin", times=1, cut=cut, cut_at=at)
    publish(LARGE, outgoing, "in/a", in_parts)
    publish(LARGE[: 4 * MIB], outgoing, "in/b", in_parts)
    assert (rule.hits, whole.hits) == (1, 1)
    assert stored(s3, bucket) == LARGE
    assert s3.get_object(Bucket=bucket, Key="out/in/b.bin")["Body"].read() == LARGE[: 4 * MIB]
    assert left() == [KEY, "out/in/b.bin"]


_PUBLISHING = """
import sys
from rayorch_prefect.storage import S3Location, Terms, publish
bucket = sys.argv[1]
notes = S3Location(bucket, "out/_rayorch/toy/uploads/")
terms = Terms(part_bytes=5 * 1024**2, open_uploads=notes)
publish(b"x" * 12 * 1024**2, S3Location(bucket, "out/"), "in/a", terms)
"""


def test_what_a_killed_process_left_open_is_swept(
    s3: S3Client,
    bucket: str,
    proxy: FaultProxy,
    notes: S3Location,
    left: Left,
    s3_store: Store,
) -> None:
    s3.create_multipart_upload(Bucket=bucket, Key=f"{KEY}.of-someone-else")
    dying: list[subprocess.Popen[bytes]] = []
    rule = proxy.on("PUT", "partNumber=2", before=lambda _: dying[0].kill(), cut="request")
    # It waits for the list to be filled: its first requests come after an import of boto3.
    dying.append(subprocess.Popen([sys.executable, "-c", _PUBLISHING, bucket]))
    rule.wait()
    dying[0].wait()
    theirs = f"upload of {KEY}.of-someone-else"
    (note,) = [key for key in left() if key.startswith(notes.prefix)]
    assert left() == [note, f"upload of {KEY}", theirs]
    assert sweep_uploads(notes) == 1
    assert left() == [theirs]
    assert sweep_uploads(notes) == 0


def test_a_sweep_that_is_refused_says_so_and_can_be_repeated(
    bucket: str,
    outgoing: S3Location,
    proxy: FaultProxy,
    in_parts: Terms,
    notes: S3Location,
    left: Left,
) -> None:
    proxy.on("PUT", "partNumber=2", answer=(500, "InternalError"))
    refused = proxy.on("GET", "uploads&", answer=(403, "AccessDenied"))
    denied = proxy.on("DELETE", KEY, answer=(403, "AccessDenied"))
    with pytest.raises(StoreError, match="InternalError"):
        publish(LARGE, outgoing, "in/a", in_parts)
    with pytest.raises(StoreError, match=r"list the open uploads of .*AccessDenied"):
        sweep_uploads(notes)
    assert f"upload of {KEY}" in left()
    proxy.remove(refused, denied)
    assert sweep_uploads(notes) == 1
    assert left() == []


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
class TestOnConditions:
    """By a store that honours them: a write replaces only what it has seen."""

    def test_the_same_content_is_not_sent_twice(
        self, outgoing: S3Location, proxy: FaultProxy
    ) -> None:
        first = publish(b"x", outgoing, "in/a", Terms(conditional=True))
        assert publish(b"x", outgoing, "in/a", Terms(conditional=True)) == first
        assert proxy.count("PUT", KEY) == 2

    def test_what_came_in_between_is_seen(
        self, s3: S3Client, bucket: str, outgoing: S3Location, proxy: FaultProxy
    ) -> None:
        contents = iter((b"1", b"2", b"3", b"4", b"5"))

        def write_too(_: object) -> None:
            s3.put_object(Bucket=bucket, Key=KEY, Body=next(contents))

        rule = proxy.on("PUT", KEY, times=2, before=write_too)
        publish(b"new", outgoing, "in/a", Terms(conditional=True))
        assert (stored(s3, bucket), rule.hits) == (b"new", 2)
        rule = proxy.on("PUT", KEY, before=write_too)
        with pytest.raises(StoreError, match="something else writes there at the same time"):
            publish(b"newer", outgoing, "in/a", Terms(conditional=True))
        assert (stored(s3, bucket), rule.hits) == (b"5", 3)

    def test_a_long_content_is_held_to_them_too(
        self, outgoing: S3Location, proxy: FaultProxy, left: Left
    ) -> None:
        terms = Terms(conditional=True, part_bytes=5 * MIB)
        proxy.on("POST", "uploadId=", nth=2, times=1, answer=(412, "PreconditionFailed"))
        refused = proxy.on("POST", "uploadId=", nth=4, times=1, answer=(501, "NotImplemented"))
        for content in (LARGE, LARGE[::-1], LARGE):
            publish(content, outgoing, "in/a", terms)
        posts = [seen for seen in proxy.seen if seen.method == "POST"]
        ends = [seen.headers for seen in posts if "uploadId=" in seen.target]
        assert [head.get("if-none-match") for head in ends] == ["*", "*", None, "*", None]
        assert ["if-match" in head for head in ends] == [False, False, True, False, False]
        assert refused.hits == 1
        assert left() == [KEY]


def test_checksums_go_along_where_they_are_honoured(
    outgoing: S3Location, proxy: FaultProxy, notes: S3Location
) -> None:
    terms = Terms.of(replace(UNSEEN, checksums=True), notes)
    publish(b"x", outgoing, "in/a", terms)
    (put,) = [each for each in proxy.seen if each.method == "PUT"]
    assert put.headers["x-amz-checksum-sha256"] == b64encode(sha256(b"x").digest()).decode()


class _Encrypting(BaseHTTPRequestHandler):
    """Keeps one object; its ETags say nothing of the content."""

    protocol_version = "HTTP/1.1"
    kept = b""
    spoilt = False

    def do_PUT(self) -> None:
        type(self).kept = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"")

    def do_HEAD(self) -> None:
        self.answer(self.kept)

    def do_GET(self) -> None:
        self.answer(b"spoilt"[: len(self.kept)] if self.spoilt else self.kept)

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("ETag", '"opaque"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_where_etags_say_nothing_the_content_is_read_back(odd_server: Serve) -> None:
    store: Any = type("Keeping", (_Encrypting,), {})
    odd_server(store)
    (artifact,) = publish(b"four", S3Location("bucket", "out/"), "in/a").artifacts
    assert artifact.etag == "opaque"
    store.spoilt = True
    with pytest.raises(StoreError, match=r"a.bin holds other bytes than the 4 that were written"):
        publish(b"four", S3Location("bucket", "out/"), "in/a")


@pytest.mark.parametrize("text", ["5MB", "0", "-1", str(5 * MIB - 1), str(5 * 1024**3 + 1)])
def test_a_wrong_size_of_parts_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYORCH_PREFECT_PART_BYTES", text)
    features = UNSEEN
    with pytest.raises(UsageError, match=r"PART_BYTES is .*expected bytes, 5242880"):
        Terms.of(features, S3Location("bucket"))
