"""The process that runs a stage on Ray."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import cloudpickle
import ray
from ray.exceptions import ObjectLostError

from rayorch_prefect.execution.async_rows import AsyncRows
from rayorch_prefect.execution.bars import Bars
from rayorch_prefect.execution.batch import run_batch
from rayorch_prefect.execution.chunk_batch import run_in_chunks
from rayorch_prefect.execution.departure import LEAST_REPORT, Departures
from rayorch_prefect.execution.log_lines import LogLines
from rayorch_prefect.execution.losses import LostValues
from rayorch_prefect.execution.marker import Marker
from rayorch_prefect.execution.memory import resident_mb
from rayorch_prefect.execution.messages import (
    BatchMessage,
    Built,
    CallContract,
    LinesTaken,
    Reply,
    RowsReply,
    TakenBack,
)
from rayorch_prefect.execution.specs import BuildOrder
from rayorch_prefect.execution.stage_runner import FAULTS, StageRunner, short
from rayorch_prefect.execution.versions import mismatch, own_versions
from rayorch_prefect.execution.wire import pack_reply, unpack_batch
from rayorch_prefect.model.events import Bar

# A driver that takes no report for so long will not mind when one is lost.
_PATIENCE_S = 1.0
CONTROL = "control"
WATCH = "watch"
ROWS = "rows"
# (type, message) of why, and the lines logged on the way; none from another version.
NotBuilt: TypeAlias = tuple[str, str] | tuple[str, str, LinesTaken]


class WorkerActor:
    """One worker of a pool. It is built by `build`, so that a failing constructor is an answer
    and not a death. Batches run one after another; methods of the control group answer while
    one runs."""

    def __init__(self) -> None:
        self._runner: StageRunner | None = None
        self._contracts: Mapping[int, CallContract] = {}
        self._bars = Bars()
        self._departures = Departures()
        self._marker: Marker | None = None
        self._weighs = False
        self._lock = threading.Lock()
        self._last_begun = -1
        self._taken_back: set[int] = set()
        self._ends = False
        self._left_behind: dict[int, Sequence[Any]] = {}
        self._done: list[tuple[int, Any]] = []
        self._collected = threading.Event()
        self._collected.set()
        self._lines_wait = threading.Event()
        self._lines = LogLines(self._wake)

    def _wake(self) -> None:
        self._lines_wait.set()

    def build(self, driver: tuple[str, str], *given: Any) -> NotBuilt | Built:
        """Build the stage; or (type, message) of what its constructor raised, and what it logged.

        `driver` are the driver's versions. What else is `given` is for the same version's eyes.
        """
        problem = mismatch(driver, own_versions())
        return ("VersionMismatch", problem) if problem else self._build(*given)

    def _build(self, spec: bytes, path: Sequence[str], log_level: str) -> NotBuilt | Built:
        import_from(path)
        self._lines.begin(log_level)
        try:
            order: BuildOrder = cloudpickle.loads(spec)
            self._contracts = order.contracts
            if order.node_setup is not None:
                order.node_setup.run_once()
            self._runner = self._built(order)
            self._marker = Marker() if order.marks_rows else None
            self._weighs = order.weighs
        except FAULTS as error:
            return type(error).__name__, short(error), self._lines.take()
        self._lines.built()
        node = ray.get_runtime_context().get_node_id()
        return Built(node, None if self._marker is None else self._marker.path)

    def _built(self, order: BuildOrder) -> StageRunner:
        return StageRunner(order.stage)

    def run(self, packed: bytes, stored: Sequence[Any] = ()) -> Any:
        """Run a batch: the reply, and after it the large returns where they were asked for;
        else what is large waits to be collected.

        See `wire` for what goes in and out.
        """
        message = unpack_batch(packed, stored)
        reply, returns = self._run(message)
        returned = self._returned(message, reply, returns)
        self._departures.expect()
        return returned

    def run_together(self, packed: bytes) -> bytes:
        """Run several batches: what `hand_over` has not said of them by now."""
        for one in pickle.loads(packed):
            message = unpack_batch(one)
            reply, returns = self._run(message)
            returned = self._returned(message, reply, returns)
            self._collected.set()  # what is large is asked for once the call is over
            with self._lock:
                self._done.append((message.batch, returned))
        with self._lock:
            if self._left_behind:
                self._collected.clear()
        replies = self.hand_over()
        self._departures.expect()
        return replies

    def hand_over(self) -> bytes:
        """(batch, reply) of the batches that ended in a call that may go on."""
        with self._lock:
            done, self._done = self._done, []
        return pickle.dumps(done, 5).ljust(LEAST_REPORT, b"\0")

    def _returned(
        self, message: BatchMessage, reply: Reply | TakenBack, returns: Sequence[Any]
    ) -> Any:
        if message.large_returns:
            return (pack_reply(reply), *returns)
        if isinstance(reply, RowsReply) and reply.large_bytes:
            left = [chunks for chunks in returns if chunks]
            with self._lock:
                self._left_behind[message.batch] = left
                self._collected.clear()
            reply = replace(reply, left_behind=len(left))
        return pack_reply(reply)

    def collect(self, batch: int) -> Any:
        """A word, and after it the large returns that a batch was not asked for."""
        with self._lock:
            left = self._left_behind.pop(batch)
            if not self._left_behind:
                self._collected.set()
        return ("collected", *left)

    def run_in_chunks(self, packed: bytes, stored: Sequence[Any] = ()) -> Iterator[Any]:
        """Run a batch: portions, each followed by its large chunks as one object if it has any."""
        assert self._runner is not None
        message = unpack_batch(packed, stored)
        if not self._begin(message.batch):
            yield TakenBack()
            return
        handed = run_in_chunks(
            self._runner,
            self._contracts[message.call],
            message,
            fetch,
            self._bars,
            self._last_left,
            self._marker,
        )
        for portion, large in handed:
            if portion.end is not None:
                portion = replace(portion, end=self._weighed(portion.end))
                self._departures.expect()
            yield portion
            if portion.large:
                yield large

    def _run(self, message: BatchMessage) -> tuple[Reply | TakenBack, Sequence[Any]]:
        assert self._runner is not None
        if not self._begin(message.batch):
            return TakenBack(), [[] for _ in range(message.large_returns)]
        contract = self._contracts[message.call]
        reply, returns = run_batch(
            self._runner,
            contract,
            message,
            fetch,
            self._bars,
            self._last_left,
            self._marker,
        )
        return self._weighed(reply), returns

    def _weighed(self, reply: Reply) -> Reply:
        if self._weighs and isinstance(reply, RowsReply):
            return replace(reply, resident_mb=resident_mb())
        return reply

    def _last_left(self) -> None:
        """What this batch does to the process must not cost the report of the one before."""
        self._departures.wait(_PATIENCE_S)
        self._collected.wait(_PATIENCE_S)

    def _begin(self, batch: int) -> bool:
        with self._lock:
            if batch in self._taken_back:
                self._taken_back.remove(batch)
                return False
            self._last_begun = max(self._last_begun, batch)
            return not self._ends

    def take_back(self, batch: int) -> bool:
        """Whether the batch has not started; if so, it never will."""
        with self._lock:
            if batch <= self._last_begun:
                return False
            self._taken_back.add(batch)
            return True

    def start_no_more(self) -> None:
        """What waits here is for nobody: the worker is about to be closed."""
        with self._lock:
            self._ends = True

    def tell_bars(self, bars: Sequence[Bar]) -> None:
        """Groups that are barred since their rows were sent here."""
        self._bars.tell(bars)

    def forget_bar(self, bar: Bar) -> None:
        """A bar whose report did not count."""
        self._bars.forget(bar)

    def watch(self) -> LinesTaken:
        """What the stage has logged, once there is something, or the worker ends; its death is an
        error at the caller."""
        while (due_s := self._lines.asked()) != 0.0:
            self._lines_wait.wait(due_s)
            self._lines_wait.clear()
        return self._lines.take()

    def close(self) -> None:
        """Let the stage put away what it holds, and end."""
        try:
            if self._runner is not None:
                self._runner.close()
        finally:
            self._lines.end()
        if self._marker is not None:
            self._marker.close()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


class ConcurrentWorkerActor(WorkerActor):
    """One with several rows in flight on an event loop; the control group has a loop of its own, so
    that it answers even where a row holds the rows' loop up."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: AsyncRows | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watch_loop: asyncio.AbstractEventLoop | None = None
        self._lines_come = asyncio.Event()

    async def build(  # type: ignore[override]
        self, driver: tuple[str, str], *given: Any
    ) -> NotBuilt | Built:
        """See `WorkerActor.build`; the stage is built on the loop of its rows."""
        self._loop = asyncio.get_running_loop()
        return super().build(driver, *given)

    def _built(self, order: BuildOrder) -> StageRunner:
        runner = StageRunner(order.stage, shares_loop=True)
        self._rows = AsyncRows(runner, order.stage.stage, order.row_limit_s)
        return runner

    async def run(self, packed: bytes, stored: Sequence[Any] = ()) -> Any:
        """Run a batch of one row beside others."""
        assert self._rows is not None
        message = unpack_batch(packed, stored)
        if not self._begin(message.batch):
            return self._returned(message, TakenBack(), [[] for _ in range(message.large_returns)])
        contract = self._contracts[message.call]
        reply, returns = await self._rows.run(contract, message, fetch, self._bars)
        return self._returned(message, self._weighed(reply), returns)

    def _wake(self) -> None:
        if self._watch_loop is not None:
            self._watch_loop.call_soon_threadsafe(self._lines_come.set)

    async def watch(self) -> LinesTaken:  # type: ignore[override]
        """See `WorkerActor.watch`; the driver ends this process for good once it has closed."""
        self._watch_loop = asyncio.get_running_loop()
        while (due_s := self._lines.asked()) != 0.0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lines_come.wait(), due_s)
            self._lines_come.clear()
        return self._lines.take()

    async def close(self) -> None:  # type: ignore[override]
        """Let the stage put away what it holds, on the loop of its rows."""
        # One that retires may be closed once more as the Engine is left: its stage is not.
        runner, self._runner = self._runner, None
        try:
            if runner is not None and self._loop is not None:
                closed = asyncio.run_coroutine_threadsafe(runner.closed(), self._loop)
                await asyncio.wrap_future(closed)
        finally:
            self._lines.end()


def worker_class(concurrency: int = 1) -> Any:
    """The Ray actor class: a second thread answers control calls, a third watches for the end."""
    kind = WorkerActor if concurrency == 1 else ConcurrentWorkerActor
    control, watch = ray.method(concurrency_group=CONTROL), ray.method(concurrency_group=WATCH)
    names = ("take_back", "start_no_more", "tell_bars", "forget_bar", "collect", "hand_over")
    for name in names:
        control(getattr(kind, name))
    watch(kind.watch)
    sizes = {CONTROL: 1, WATCH: 1}
    if concurrency > 1:
        sizes[ROWS] = concurrency
        for name in ("build", "run"):
            ray.method(concurrency_group=ROWS)(getattr(kind, name))
    groups: Any = {"concurrency_groups": sizes}
    return ray.remote(**groups)(kind)


def fetch(refs: Sequence[Any]) -> Sequence[Any]:
    """Read stored objects from Ray. Raises LostValues for those whose node has died."""
    try:
        found: Sequence[Any] = ray.get(list(refs))
    except ObjectLostError as error:
        lost = [position for position, ref in enumerate(refs) if _is_lost(ref)]
        if not lost:
            raise
        raise LostValues(lost) from error
    return found


def _is_lost(ref: Any) -> bool:
    try:
        ray.get(ref)
    except ObjectLostError:
        return True
    return False


def search_path() -> list[str]:
    """Where this process finds modules, as absolute folders."""
    return [os.path.abspath(folder) for folder in sys.path]


def import_from(path: Sequence[str]) -> None:
    """Find the driver's modules on nodes that share its folders."""
    known = set(sys.path)
    sys.path.extend(folder for folder in path if folder not in known and os.path.isdir(folder))
