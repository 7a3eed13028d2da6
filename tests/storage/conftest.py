"""Both S3 servers, each once a session, and a fresh bucket a test."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from werkzeug.serving import make_server

from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.locations import S3Location
from tests.stores import Store, WsgiApp, forwarding_to, s3_store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

__all__ = ["s3_store"]


@pytest.fixture
def s3(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    s3_store.use(monkeypatch)
    return s3_client()


@pytest.fixture
def bucket(s3: S3Client) -> str:
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture
def incoming(bucket: str) -> S3Location:
    return S3Location(bucket, "in/")


@pytest.fixture
def outgoing(bucket: str) -> S3Location:
    return S3Location(bucket, "out/")


_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass
class Door:
    """A real store behind a server of ours that refuses methods on demand."""

    app: WsgiApp
    refused: set[str] = field(default_factory=set)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in self.refused:
            return self.app(environ, start_response)
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response("403 Forbidden", [("Content-Length", str(len(_DENIED)))])
        return [_DENIED]


@pytest.fixture
def door(s3_store: Store, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """The way of boto3 to the store; it also stands behind `s3`, which goes there directly."""
    door = Door(forwarding_to(s3_store.endpoint))
    server = make_server("127.0.0.1", 0, door, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    Store("door", f"http://127.0.0.1:{server.server_port}").use(monkeypatch)
    yield door
    server.shutdown()
    thread.join()
    server.server_close()


Serve = Callable[[type[BaseHTTPRequestHandler]], str]


@pytest.fixture
def odd_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server that is not, or not quite, S3, and point boto3 to it; its endpoint."""
    with ExitStack() as stack:

        def serve(answers: type[BaseHTTPRequestHandler]) -> str:
            server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
            stack.callback(server.server_close)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            stack.callback(server.shutdown)
            endpoint = f"http://127.0.0.1:{server.server_port}"
            Store("odd", endpoint).use(monkeypatch)
            return endpoint

        yield serve
