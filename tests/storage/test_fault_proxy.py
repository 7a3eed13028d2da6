"""The servers of the tests themselves: what the fault proxy lets through, and what it breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException, IncompleteRead
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.storage import S3Location, list_sources
from tests.fault_proxy import FaultProxy, Hold

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEYS = ["in/a b+c%20d.json", "in/café.json", "in/cafe\u0301.json", "in/?q=1#f", "in/x"]
LARGE = 3_000_000


def test_a_store_behind_the_proxy_is_the_same_store(
    s3: S3Client, bucket: str, incoming: S3Location, proxy: FaultProxy
) -> None:
    etags = {key: s3.put_object(Bucket=bucket, Key=key, Body=key.encode())["ETag"] for key in KEYS}
    through = list(list_sources(incoming))
    assert {source.key: f'"{source.etag}"' for source in through} == etags
    assert [source.read().decode() for source in through] == [source.key for source in through]
    assert proxy.count("GET", f"/{bucket}/") == len(KEYS)


class _Echo(BaseHTTPRequestHandler):
    """Answers with the body it got; keeps the bodies, and the headers of the last request."""

    protocol_version = "HTTP/1.1"
    taken: list[bytes]
    sent: dict[str, str]

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self.chunks()
        self.taken.append(body)
        self.sent.update(self.headers.items())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        return body

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def echo() -> type[_Echo]:
    return type("Echo", (_Echo,), {"taken": [], "sent": {}})


@pytest.fixture
def between(echo: type[_Echo]) -> Iterator[FaultProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), echo)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
        yield proxy
    server.shutdown()
    server.server_close()


Put = Callable[..., tuple[int, bytes]]


@pytest.fixture
def put(between: FaultProxy) -> Put:
    """PUT to the proxy on a connection of its own; status and body."""

    def send(path: str, body: bytes | Iterator[bytes] = b"body") -> tuple[int, bytes]:
        connection = HTTPConnection(between.endpoint.removeprefix("http://"), timeout=10)
        try:
            connection.request("PUT", path, body, {"Host": "signed.example"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return send


def test_a_request_without_a_rule_passes_as_it_is(
    between: FaultProxy, put: Put, echo: type[_Echo]
) -> None:
    between.on("GET", answer=(500, "No"))
    between.on("PUT", "/other", answer=(500, "No"))
    assert put("/b/a%20b?x=1", b"x" * LARGE) == (200, b"x" * LARGE)
    assert put("/b/chunked", iter([b"ab", b"c"])) == (200, b"abc")
    assert echo.sent["Host"] == "signed.example"
    first, second = between.seen
    assert (first.number, first.target, first.body, first.status) == (1, "/b/a b?x=1", LARGE, 200)
    assert (second.number, second.status) == (2, 200)


def test_an_answer_replaces_the_stores(between: FaultProxy, put: Put, echo: type[_Echo]) -> None:
    rule = between.on("PUT", "/b/", nth=2, times=2, answer=(503, "SlowDown"))
    answers = [put(f"/b/{i}") for i in range(5)]
    assert [status for status, _ in answers] == [200, 503, 503, 200, 200]
    assert b"<Code>SlowDown</Code>" in answers[1][1]
    assert (rule.covered, rule.hits, len(echo.taken)) == (5, 2, 3)
    between.on(answer=(403, "AccessDenied"))
    assert put("/c")[0] == 403
    between.remove()
    assert put("/c")[0] == 200


def test_connections_are_cut_where_the_rule_says(
    between: FaultProxy, put: Put, echo: type[_Echo]
) -> None:
    between.on(key="/request", cut="request")
    between.on(key="/upload", cut="upload", cut_at=1000)
    between.on(key="/reply", cut="reply")
    between.on(key="/download", cut="download", cut_at=1000)
    for path in ("/request", "/upload", "/reply"):
        with pytest.raises(ConnectionError):
            put(path, b"x" * LARGE)
    with pytest.raises((IncompleteRead, ConnectionError)):
        put("/download", b"x" * LARGE)
    assert [seen.status for seen in between.seen] == [0, 0, 0, 0]
    # Cut after the store had it all: the reply, the download. The echo may have read a rest.
    assert [len(body) for body in echo.taken if len(body) > 1000] == [LARGE, LARGE]
    assert between.seen[1].body == 1000


def test_a_cut_download_comes_with_what_was_let_through(between: FaultProxy) -> None:
    between.on(cut="download", cut_at=7)
    connection = HTTPConnection(between.endpoint.removeprefix("http://"), timeout=10)
    connection.request("PUT", "/x", b"0123456789")
    answer = connection.getresponse()
    assert (answer.status, answer.read(7)) == (200, b"0123456")
    with pytest.raises((HTTPException, ConnectionError)):
        answer.read()
    connection.close()


@pytest.mark.parametrize(("hold", "at_store"), [("request", 0), ("reply", 1)])
def test_held_requests_wait_until_they_are_released(
    between: FaultProxy, put: Put, echo: type[_Echo], hold: Hold, at_store: int
) -> None:
    answered = threading.Event()
    rule = between.on(key="/held", hold=hold, after=lambda seen: answered.set())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(put, "/held", b"held")
        rule.wait()
        assert answered.wait(10 if at_store else 0.2) == bool(at_store)
        assert put("/other", b"other")[0] == 200
        assert echo.taken.count(b"held") == at_store
        assert not waiting.done()
        rule.release()
        assert waiting.result()[0] == 200
    assert sorted(echo.taken) == [b"held", b"other"]


def test_something_is_done_just_before_and_just_after_the_nth_request(
    between: FaultProxy, put: Put, echo: type[_Echo]
) -> None:
    found: list[tuple[int, int]] = []
    between.on(nth=2, times=1, before=lambda seen: found.append((seen.number, len(echo.taken))))
    between.on(nth=3, times=1, after=lambda seen: found.append((seen.number, len(echo.taken))))
    between.on(nth=4, times=1, before=lambda seen: put("/from-within"), cut="request")
    assert [put("/x")[0] for _ in range(3)] == [200] * 3
    assert found == [(2, 1), (3, 3)]
    with pytest.raises(ConnectionError):
        put("/x")
    assert [(seen.target, seen.status) for seen in between.seen[3:]] == [
        ("/x", 0),
        ("/from-within", 200),
    ]


def test_a_delay_is_one(between: FaultProxy, put: Put) -> None:
    between.on(times=1, delay=0.5)
    began = time.monotonic()
    assert put("/x")[0] == 200
    assert time.monotonic() - began >= 0.5
