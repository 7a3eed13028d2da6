"""A proxy between boto3 and an S3 server that goes wrong on demand.

    with FaultProxy(store.endpoint) as proxy:           # listens on 127.0.0.1, a free port
        ...AWS_ENDPOINT_URL=proxy.endpoint...
        rule = proxy.on("PUT", "/out/b", answer=(503, "SlowDown"), times=2)
        ...
        assert rule.hits == 2
        assert proxy.count("PUT", "/out/b") == 3

A rule covers the requests of a method ("" for any) whose path or query has `key` (a regular
expression, searched in the decoded target `/bucket/key?query`); it counts those and acts on number
`nth` and the `times - 1` after it (None: on all after it). All rules due act on a request,
in the order in which they were made. What a rule does, in the order of a request's life:

    before=f              f(seen) once the request's head has come and nothing went to the store
    delay=1.5             seconds before it goes to the store
    hold="request"        it waits there until `rule.release()`
    answer=(503, "SlowDown") or (503, "SlowDown", {"Retry-After": "1"})
                          this instead of the store's answer; the store sees nothing
    cut="request"         the connection is reset; the store sees nothing
    cut="upload"          reset after `cut_at` bytes of the request's body went to the store
    after=f               f(seen) once the store has answered and nothing of it went to the client
    hold="reply"          the answer waits there until `rule.release()`
    cut="reply"           reset before the answer's head: the store did it, the client cannot know
    cut="download"        reset after the answer's head and `cut_at` bytes of its body

So a process is killed just before the n-th request of any kind by
`proxy.on(nth=n, before=lambda seen: process.kill(), cut="request")`, and just after it by
`proxy.on(nth=n, after=lambda seen: process.kill(), cut="reply")`. The functions run in threads of
their own and may use the store, through the proxy too; `rule.wait(hits=1)` waits for a rule to
act. `proxy.seen` lists all requests in the order of their arrival.

Heads go on as they came, the Host header too, which signatures cover.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit

Answer: TypeAlias = "tuple[int, str] | tuple[int, str, dict[str, str]]"
Cut: TypeAlias = Literal["request", "upload", "reply", "download"]
Hold: TypeAlias = Literal["request", "reply"]
_Chunks: TypeAlias = AsyncGenerator[bytes, None]

WAIT_SECONDS = 30.0
_HOLD_STEP = 0.01
_CALLS = 64
_CHUNK = 64 * 1024
_HEAD_LIMIT = 256 * 1024
_UNKNOWN = 1 << 62
_NO_BODY = (204, 304)


@dataclass(slots=True)
class Seen:
    """One request: its `number` from 1, and what the client got, 0 for a reset connection.

    Names of headers are in lower case; `at` is when it came, in seconds of a monotonic clock.
    """

    number: int
    method: str
    target: str
    headers: dict[str, str]
    at: float
    body: int = 0
    status: int | None = None


@dataclass(eq=False)
class Rule:
    """When something goes wrong, and what; see the module. `hits` counts the requests it met."""

    method: str = ""
    key: str = ""
    nth: int = 1
    times: int | None = None
    before: Callable[[Seen], object] | None = None
    delay: float = 0.0
    hold: Hold | None = None
    answer: Answer | None = None
    cut: Cut | None = None
    cut_at: int = 0
    after: Callable[[Seen], object] | None = None
    covered: int = 0
    hits: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _released: threading.Event = field(default_factory=threading.Event)

    def due(self, seen: Seen) -> bool:
        """Whether the rule acts on this request; counts it."""
        if self.method not in ("", seen.method) or not re.search(self.key, seen.target):
            return False
        self.covered += 1
        past = self.covered - self.nth
        if past < 0 or (self.times is not None and past >= self.times):
            return False
        with self._changed:
            self.hits += 1
            self._changed.notify_all()
        return True

    def wait(self, hits: int = 1, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the rule has met so many requests; fails if it does not in time."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.hits >= hits, seconds), f"never met: {self}"

    def release(self) -> None:
        """Let go what the rule holds, now and later."""
        self._released.set()

    async def released(self) -> None:
        """Wait until `release` was called."""
        while not self._released.is_set():
            await asyncio.sleep(_HOLD_STEP)


class _Reset(Exception):
    """The connection to the client is to be reset."""


@dataclass(slots=True)
class _Head:
    """A request's or an answer's first line and headers, as they came."""

    first: str
    headers: list[tuple[str, str]]

    @property
    def named(self) -> dict[str, str]:
        return {key.lower(): value for key, value in self.headers}

    def get(self, name: str) -> str:
        return self.named.get(name, "")

    def bytes_without(self, *names: str) -> bytes:
        """For the wire, without the headers of these names and with the connection's end."""
        kept = [f"{key}: {value}" for key, value in self.headers if key.lower() not in names]
        return "\r\n".join([self.first, *kept, "", ""]).encode("latin-1")

    @property
    def chunked(self) -> bool:
        return "chunked" in self.get("transfer-encoding").lower()

    @property
    def length(self) -> int:
        """Of the body in bytes, -1 if the head does not say."""
        return int(self.get("content-length") or -1)


class FaultProxy:
    """Hands requests to the S3 server of `upstream`, or where `upstream(path)` says."""

    def __init__(self, upstream: str | Callable[[str], str]) -> None:
        self._upstream = upstream if callable(upstream) else lambda path: upstream
        self._rules: list[Rule] = []
        self.seen: list[Seen] = []
        self.endpoint = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._ready.wait(WAIT_SECONDS)
        return self

    def __exit__(
        self, of: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        for rule in self._rules:
            rule.release()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)

    def on(
        self,
        method: str = "",
        key: str = "",
        *,
        nth: int = 1,
        times: int | None = None,
        before: Callable[[Seen], object] | None = None,
        delay: float = 0.0,
        hold: Hold | None = None,
        answer: Answer | None = None,
        cut: Cut | None = None,
        cut_at: int = 0,
        after: Callable[[Seen], object] | None = None,
    ) -> Rule:
        """Add a rule; see the module."""
        rule = Rule(method, key, nth, times, before, delay, hold, answer, cut, cut_at, after)
        self._rules = [*self._rules, rule]
        return rule

    def remove(self, *rules: Rule) -> None:
        """Take rules away, all if none is named; what they hold is let go."""
        for rule in rules or self._rules:
            rule.release()
        self._rules = [rule for rule in self._rules if rules and rule not in rules]

    def count(self, method: str = "", key: str = "") -> int:
        """How many requests of this method ("" for any) there were for such a target."""
        return sum(
            method in ("", each.method) and bool(re.search(key, each.target)) for each in self.seen
        )

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(ThreadPoolExecutor(_CALLS, "fault proxy"))
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        server = self._loop.run_until_complete(starting)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in self._tasks:
            task.cancel()
        ending = asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.run_until_complete(ending)
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        # So that `drain` means sent, and a reset comes after what was written.
        writer.transport.set_write_buffer_limits(high=0)
        try:
            while await self._exchange(reader, writer):
                pass
            writer.close()
        except _Reset:
            _reset(writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection can have another."""
        head = await _read_head(reader)
        method, target, _ = head.first.split(" ", 2)
        seen = Seen(len(self.seen) + 1, method, unquote(target), head.named, time.monotonic())
        self.seen.append(seen)
        due = [rule for rule in self._rules if rule.due(seen)]
        exchange = _Exchange(seen, head, due, reader, writer)
        try:
            return await exchange.run(self._upstream(urlsplit(target).path))
        except _Reset:
            seen.status = 0
            raise


@dataclass(slots=True)
class _Exchange:
    """One request on its way, and the rules that are due on it."""

    seen: Seen
    head: _Head
    due: list[Rule]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def run(self, upstream: str) -> bool:
        await self._call("before")
        for rule in self.due:
            await asyncio.sleep(rule.delay)
        await self._hold("request")
        self._cut("request")
        if "100-continue" in self.head.get("expect").lower():
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for rule in self.due:
            if rule.answer:
                return await self._answer(rule.answer)
        return await self._forward(upstream)

    async def _forward(self, upstream: str) -> bool:
        where = urlsplit(upstream)
        store, to_store = await asyncio.open_connection(where.hostname, where.port)
        to_store.transport.set_write_buffer_limits(high=0)
        try:
            sent = self.head.bytes_without("connection", "expect")[:-2]
            to_store.write(sent + b"Connection: close\r\n\r\n")
            await self._send_up(to_store)
            answer = await _read_head(store)
            await self._call("after")
            await self._hold("reply")
            self._cut("reply")
            return await self._send_down(answer, store)
        finally:
            to_store.transport.abort()

    async def _send_up(self, to_store: asyncio.StreamWriter) -> None:
        cut = self._cut_at("upload")
        async for chunk in _body(self.reader, self.head, cut):
            self.seen.body += len(chunk)
            to_store.write(chunk)
            await to_store.drain()
        if cut is not None:
            _reset(to_store)
            raise _Reset

    async def _send_down(self, answer: _Head, store: asyncio.StreamReader) -> bool:
        version, status, *reason = answer.first.split(" ", 2)
        answer.first = " ".join(["HTTP/1.1", status, *(reason or [""])])
        self.seen.status = int(status)
        empty = self.seen.method == "HEAD" or int(status) in _NO_BODY
        chunked = answer.chunked and version != "HTTP/1.0"
        keeps = empty or chunked or answer.length >= 0
        head = answer.bytes_without("connection", "keep-alive")
        self.writer.write(head if keeps else head[:-2] + b"Connection: close\r\n\r\n")
        cut = self._cut_at("download")
        if not empty:
            sized = answer.length >= 0 and not chunked
            await self._relay(_sized(store, answer.length) if sized else _to_end(store), cut)
        if cut is not None:
            raise _Reset
        await self.writer.drain()
        return keeps

    async def _relay(self, chunks: _Chunks, cut: int | None) -> None:
        left = _UNKNOWN if cut is None else cut
        async for chunk in chunks:
            self.writer.write(chunk[:left])
            await self.writer.drain()
            left -= len(chunk)
            if left <= 0:
                return

    async def _answer(self, answer: Answer) -> bool:
        status, code, *more = answer
        async for chunk in _body(self.reader, self.head, None):
            self.seen.body += len(chunk)
        text = f"<Error><Code>{code}</Code><Message>asked for by the test</Message></Error>"
        content = b"" if self.seen.method == "HEAD" else text.encode()
        headers = {"Content-Length": str(len(content)), "Content-Type": "application/xml"}
        lines = [f"{name}: {value}" for name, value in {**headers, **(more or [{}])[0]}.items()]
        head = "\r\n".join([f"HTTP/1.1 {status} {code}", *lines, "", ""])
        self.seen.status = status
        self.writer.write(head.encode() + content)
        await self.writer.drain()
        return True

    async def _call(self, name: Literal["before", "after"]) -> None:
        for rule in self.due:
            function = rule.before if name == "before" else rule.after
            if function:
                await asyncio.to_thread(function, self.seen)

    async def _hold(self, what: Hold) -> None:
        for rule in self.due:
            if rule.hold == what:
                await rule.released()

    def _cut(self, where: Cut) -> None:
        if any(rule.cut == where for rule in self.due):
            raise _Reset

    def _cut_at(self, where: Cut) -> int | None:
        return min((rule.cut_at for rule in self.due if rule.cut == where), default=None)


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    """The next head that is no interim answer."""
    while True:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        if not first.startswith("HTTP/1.1 100"):
            break
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return _Head(first, headers)


async def _body(reader: asyncio.StreamReader, head: _Head, cut: int | None) -> _Chunks:
    """A request's body as it stands on the wire, `cut` bytes at most."""
    chunks = _chunked(reader) if head.chunked else _sized(reader, max(head.length, 0))
    left = _UNKNOWN if cut is None else cut
    async for chunk in chunks:
        yield chunk[:left]
        left -= len(chunk)
        if left <= 0:
            return


async def _sized(reader: asyncio.StreamReader, length: int) -> _Chunks:
    while length:
        chunk = await reader.read(min(_CHUNK, length))
        if not chunk:
            raise asyncio.IncompleteReadError(b"", length)
        length -= len(chunk)
        yield chunk


async def _chunked(reader: asyncio.StreamReader) -> _Chunks:
    size = 1
    while size:
        line = await reader.readline()
        yield line
        size = int(line.partition(b";")[0], 16)
        if size:
            yield await reader.readexactly(size + 2)
    while (line := await reader.readline()) != b"\r\n":  # trailers
        yield line
    yield line


async def _to_end(reader: asyncio.StreamReader) -> _Chunks:
    while chunk := await reader.read(_CHUNK):
        yield chunk


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST, as a peer that is gone does, rather than with an orderly end."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
