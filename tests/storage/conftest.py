"""Both S3 servers, each once a session, and a fresh bucket a test."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.locations import S3Location
from tests.fault_proxy import FaultProxy
from tests.stores import Store, s3_store

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


@pytest.fixture
def proxy(s3_store: Store, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The way of boto3 to the store; it also stands behind `s3`, which goes there directly."""
    with FaultProxy(s3_store.endpoint) as proxy:
        Store("proxy", proxy.endpoint).use(monkeypatch)
        yield proxy


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
