"""Stores that refuse, are elsewhere, are no S3, or do not answer: each is told with what to do."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import (
    RayorchError,
    SourceMissing,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from rayorch_prefect.storage import (
    Ledger,
    S3Location,
    Source,
    list_sources,
    probe,
    publish,
    refuse_empty,
)
from rayorch_prefect.storage import client as client_module
from rayorch_prefect.storage import probing as probing_module
from rayorch_prefect.storage.objects import get_object
from tests.storage.conftest import Serve
from tests.stores import SECRET_KEY

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Use = Callable[[S3Location], object]

# Every way in which this package turns to a store.
USES: dict[str, Use] = {
    "list": lambda place: list(list_sources(place)),
    "look around": refuse_empty,
    "read": lambda place: Source(f"s3://{place.bucket}/in/a", "e1", 1, "in/a").read(),
    "get": lambda place: get_object(place, "in/a"),
    "publish": lambda place: publish("x", place, "in/a"),
    "ledger": lambda place: Ledger(place, "documents", "f" * 64).load(),
    "probe": lambda place: probe(place, timeout=2.0),
}
PLACE = S3Location("some-bucket", "in/")
each_use = pytest.mark.parametrize("use", USES.values(), ids=USES)
# Where the cause lies outside of the request, as with settings and networks.
some_uses = pytest.mark.parametrize("use", [USES["list"], USES["probe"]], ids=["list", "probe"])


@pytest.fixture(autouse=True)
def single_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries that repeat themselves make no other error, only a later one."""
    monkeypatch.setattr(client_module, "ATTEMPTS", 1)
    monkeypatch.setattr(probing_module, "_ATTEMPTS", 1)


def failing(use: Use, place: S3Location = PLACE) -> str:
    """What the use of a bad store says; it is a StoreError that names the place."""
    with pytest.raises(StoreError, match=f"s3://{place.bucket}/") as caught:
        use(place)
    # Absent would mean: nothing there, go on. None of these stores has said that.
    assert type(caught.value) in (StoreError, StoreUnavailable)
    assert "; " in str(caught.value)
    assert_no_secret(caught.value)
    return str(caught.value)


def assert_no_secret(error: RayorchError) -> None:
    shown = "".join(traceback.format_exception(error))
    for secret in (SECRET_KEY, "wrong-secret", "token-of-a-session", "s3cr3t"):
        assert secret not in shown


@each_use
@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", "secret key does not fit"),
        ("AWS_ACCESS_KEY_ID", "nobody", "does not know this access key"),
    ],
)
def test_credentials_that_do_not_fit(
    s3: S3Client,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    use: Use,
    setting: str,
    value: str,
    advice: str,
) -> None:
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"x")
    monkeypatch.setenv(setting, value)
    assert advice in failing(use, S3Location(bucket, "in/"))


@each_use
def test_a_missing_bucket(s3: S3Client, use: Use) -> None:
    told = failing(use, S3Location("no-such-bucket", "in/"))
    assert "NoSuchBucket" in told
    assert "check the name of the bucket and AWS_ENDPOINT_URL" in told


class _Answers(BaseHTTPRequestHandler):
    """Answers every request alike."""

    # With 1.0 boto3 would wait a second for leave to send a body.
    protocol_version = "HTTP/1.1"
    status = 200
    code: str | None = None
    said = "said"
    body = b""
    region: str | None = None

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = self.body
        if self.code:
            body = f"<Error><Code>{self.code}</Code><Message>{self.said}</Message></Error>".encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        if self.region:
            self.send_header("x-amz-bucket-region", self.region)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


def answering(**fields: object) -> type[BaseHTTPRequestHandler]:
    return type("_Answering", (_Answers,), fields)


@each_use
@pytest.mark.parametrize("code", ["AccessDenied", None])
def test_no_permission_is_never_read_as_absent(
    odd_server: Serve, use: Use, code: str | None
) -> None:
    endpoint = odd_server(answering(status=403, code=code))
    told = failing(use)
    assert "ask for s3:ListBucket, s3:GetObject, s3:PutObject on this place" in told
    assert endpoint in told


@some_uses
@pytest.mark.parametrize(
    ("status", "code", "region"),
    [
        (301, "PermanentRedirect", "eu-south-2"),
        (301, None, None),
        (400, "AuthorizationHeaderMalformed", None),
        (400, "IllegalLocationConstraintException", None),
    ],
)
def test_a_bucket_in_another_region(
    odd_server: Serve, use: Use, status: int, code: str | None, region: str | None
) -> None:
    odd_server(answering(status=status, code=code, region=region))
    assert "set AWS_REGION" in failing(use)


NO_S3 = {
    "page": {"body": b"<html><body>It works!</body></html>"},
    "broken page": {"body": b"<!doctype html><p>It works!<br>"},
    "nothing": {},
    "not implemented": {"status": 501, "body": b"Unsupported method"},
}


@each_use
@pytest.mark.parametrize("answer", NO_S3.values(), ids=NO_S3)
def test_a_server_that_is_no_s3(odd_server: Serve, use: Use, answer: dict[str, object]) -> None:
    endpoint = odd_server(answering(**answer))
    told = failing(use)
    assert "is AWS_ENDPOINT_URL the address of an S3 server?" in told
    assert endpoint in told


@some_uses
def test_an_endpoint_where_nobody_listens(
    odd_server: Serve, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    odd_server(_Answers)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:s3cr3t@127.0.0.1:9")
    told = failing(use)
    assert "check AWS_ENDPOINT_URL, the region and the network" in told
    assert "http://***@127.0.0.1:9" in told


class _Hanging(_Answers):
    """Takes every request and answers none."""

    released = threading.Event()

    def answer(self) -> None:
        self.released.wait(60)
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer


@each_use
def test_a_store_that_never_answers_is_given_up(
    odd_server: Serve, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    monkeypatch.setattr(client_module, "READ_TIMEOUT", 0.2)
    endpoint = odd_server(_Hanging)
    _Hanging.released.clear()
    try:
        told = failing(use) if use is not USES["probe"] else failing(lambda it: probe(it, 0.2))
    finally:
        _Hanging.released.set()
    assert "did not answer in time" in told
    assert endpoint in told


@some_uses
def test_a_credential_with_a_line_break_is_not_shown(
    s3: S3Client, bucket: str, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-a-session\n")
    assert "AWS credentials for line breaks" in failing(use, S3Location(bucket, "in/"))


@some_uses
def test_a_token_of_a_profile_is_not_shown(
    odd_server: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, use: Use
) -> None:
    odd_server(_Answers)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    profile = tmp_path / "credentials"
    # An indented second line is part of the value.
    token = "token-of-a-session\n  its second line"
    profile.write_text(
        f"[default]\naws_access_key_id = a\naws_secret_access_key = s3cr3t\n"
        f"aws_session_token = {token}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    assert "AWS credentials for line breaks" in failing(use)


@some_uses
def test_a_secret_that_the_store_repeats_is_not_shown(odd_server: Serve, use: Use) -> None:
    odd_server(answering(status=400, code="InvalidToken", said=f"no {SECRET_KEY} here"))
    assert "InvalidToken no *** here; the session token is not valid" in failing(use)


@some_uses
def test_tls_spoken_to_a_plain_server(
    odd_server: Serve, monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    endpoint = odd_server(_Answers).replace("http:", "https:")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    assert "right one of http:// and https://" in failing(use)


@some_uses
def test_no_credentials(odd_server: Serve, monkeypatch: pytest.MonkeyPatch, use: Use) -> None:
    odd_server(_Answers)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in failing(use)


@some_uses
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
        ("AWS_DEFAULT_REGION", "eu west"),
        ("AWS_PROFILE", "no-such-profile"),
    ],
)
def test_settings_that_make_no_client(
    odd_server: Serve, monkeypatch: pytest.MonkeyPatch, use: Use, setting: str, value: str
) -> None:
    odd_server(_Answers)
    monkeypatch.setenv(setting, value)
    with pytest.raises(UsageError, match=r"expected AWS_ENDPOINT_URL like http://host:port") as it:
        use(PLACE)
    assert value in str(it.value)


def test_a_zero_byte_object_is_a_source(s3: S3Client, bucket: str, incoming: S3Location) -> None:
    s3.put_object(Bucket=bucket, Key="in/empty.pdf", Body=b"")
    (source,) = list_sources(incoming)
    assert (source.size, source.read()) == (0, b"")
    s3.put_object(Bucket=bucket, Key="in/empty.pdf", Body=b"no more")
    with pytest.raises(StoreError, match="run again to take the new content"):
        source.read()


def test_a_source_that_vanishes_says_so(s3: S3Client, bucket: str, incoming: S3Location) -> None:
    s3.put_object(Bucket=bucket, Key="in/a", Body=b"x")
    (source,) = list_sources(incoming)
    s3.delete_object(Bucket=bucket, Key="in/a")
    with pytest.raises(SourceMissing, match=f"{source.uri}.*run again to list anew"):
        source.read()
