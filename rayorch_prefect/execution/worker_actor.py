"""The process that runs a stage on Ray."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import cloudpickle
import ray
from ray.exceptions import ObjectLostError

from rayorch_prefect.execution.bars import Bars
from rayorch_prefect.execution.batch import run_batch
from rayorch_prefect.execution.departure import Departures
from rayorch_prefect.execution.losses import LostValues
from rayorch_prefect.execution.marker import Marker
from rayorch_prefect.execution.memory import resident_mb
from rayorch_prefect.execution.messages import (
    BatchMessage,
    Built,
    CallContract,
    Reply,
    RowsReply,
    TakenBack,
)
from rayorch_prefect.execution.specs import BuildOrder
from rayorch_prefect.execution.stage_runner import FAULTS, StageRunner, short
from rayorch_prefect.execution.versions import mismatch, own_versions
from rayorch_prefect.model.events import Bar

# A driver that takes no report for so long will not mind when one is lost.
_PATIENCE_S = 1.0
CONTROL = "control"
WATCH = "watch"


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
        self._end = threading.Event()

    def build(self, driver: tuple[str, str], *given: Any) -> tuple[str, str] | Built:
        """Build the stage; or (type, message) of what its constructor raised.

        `driver` are the driver's versions. What else is `given` is for the same version's eyes.
        """
        problem = mismatch(driver, own_versions())
        return ("VersionMismatch", problem) if problem else self._build(*given)

    def _build(self, spec: bytes, path: Sequence[str]) -> tuple[str, str] | Built:
        import_from(path)
        try:
            order: BuildOrder = cloudpickle.loads(spec)
            self._contracts = order.contracts
            if order.node_setup is not None:
                order.node_setup.run_once()
            self._runner = StageRunner(order.stage)
            self._marker = Marker() if order.marks_rows else None
            self._weighs = order.weighs
        except FAULTS as error:
            return type(error).__name__, short(error)
        node = ray.get_runtime_context().get_node_id()
        return Built(node, None if self._marker is None else self._marker.path)

    def run(self, message: BatchMessage) -> Any:
        """Run a batch: the reply, and after it the large returns where they were asked for."""
        reply, returns = self._run(message)
        self._departures.expect()
        return (reply, *returns) if message.large_returns else reply

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
        if self._weighs and isinstance(reply, RowsReply):
            reply = replace(reply, resident_mb=resident_mb())
        return reply, returns

    def _last_left(self) -> None:
        """What this batch does to the process must not cost the report of the one before."""
        self._departures.wait(_PATIENCE_S)

    def _begin(self, batch: int) -> bool:
        with self._lock:
            if batch in self._taken_back:
                self._taken_back.remove(batch)
                return False
            self._last_begun = max(self._last_begun, batch)
            return True

    def take_back(self, batch: int) -> bool:
        """Whether the batch has not started; if so, it never will."""
        with self._lock:
            if batch <= self._last_begun:
                return False
            self._taken_back.add(batch)
            return True

    def tell_bars(self, bars: Sequence[Bar]) -> None:
        """Groups that are barred since their rows were sent here."""
        self._bars.tell(bars)

    def forget_bar(self, bar: Bar) -> None:
        """A bar whose report did not count."""
        self._bars.forget(bar)

    def watch(self) -> None:
        """Returns when the worker ends; its death is an error at the caller."""
        self._end.wait()

    def close(self) -> None:
        """Let the stage put away what it holds, and end."""
        self._end.set()
        if self._runner is not None:
            self._runner.close()
        if self._marker is not None:
            self._marker.close()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


def worker_class() -> Any:
    """The Ray actor class: a second thread answers control calls, a third watches for the end."""
    control, watch = ray.method(concurrency_group=CONTROL), ray.method(concurrency_group=WATCH)
    for name in ("take_back", "tell_bars", "forget_bar"):
        control(getattr(WorkerActor, name))
    watch(WorkerActor.watch)
    groups: Any = {"concurrency_groups": {CONTROL: 1, WATCH: 1}}
    return ray.remote(**groups)(WorkerActor)


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
