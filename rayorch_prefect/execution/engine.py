"""The Engine: one scheduler and its actor pools on Ray, shared by all active microbatches."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from rayorch_prefect.errors import (
    ClusterError,
    EngineClosed,
    InternalError,
    RayorchError,
    UsageError,
)
from rayorch_prefect.execution.appliers import Application, Appliers
from rayorch_prefect.execution.backend import (
    BackendMessage,
    BatchReply,
    ChunksCame,
    LinesCame,
    WorkerIsReady,
)
from rayorch_prefect.execution.bounds import AUTO, bound_of, checked_bound
from rayorch_prefect.execution.calls import Calls
from rayorch_prefect.execution.cluster import check_fit, connect, object_store_bytes, waiting_text
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.engine_run import Run
from rayorch_prefect.execution.environments import checked, refuse_local_folders
from rayorch_prefect.execution.local import listed_rows, row_keys
from rayorch_prefect.execution.log_lines import WARNING, checked_level
from rayorch_prefect.execution.metrics import EngineMetrics, snapshot
from rayorch_prefect.execution.parent import OnParent, Parent
from rayorch_prefect.execution.ray_backend import RayBackend
from rayorch_prefect.execution.ray_metrics import RayMetrics
from rayorch_prefect.execution.rows import describe_rows
from rayorch_prefect.execution.stage_lines import OnLine, log_line
from rayorch_prefect.execution.standstill import Standstill
from rayorch_prefect.execution.worker_actor import search_path
from rayorch_prefect.program.declare import Program, require_program
from rayorch_prefect.replay.recorder import MOST_MB, Recorder
from rayorch_prefect.scheduler.credits import Bound
from rayorch_prefect.scheduler.policies import FIFO, Policy, policy_of

logger = logging.getLogger(__name__)

WAIT_NOTICE_S = 10.0
STILL_AFTER_S = 300.0
LONGEST_NAP_S = 3600.0
# While calls are under way, what other threads ask for waits so long at most: the second while
# children arrive in portions, which threads take.
NAP_S = 0.01
SHORT_NAP_S = 0.002
END_S = 5.0
GIVEN_UP_S = 0.5


class Engine:
    """Runs a Program on Ray.

    Entering it connects to Ray (the process's own, `address`, RAY_ADDRESS, or a local one that
    it starts) and returns when every worker is ready. `appliers` is the number of actors that
    `apply` spreads over; `start_timeout` bounds, in seconds, the wait for workers; what is waited
    for is told to `on_wait` from time to time, by default to the log. When no batch has come back
    and no worker has become ready for `still_after` seconds, `on_still` is told which stage holds
    what, again with growing gaps; nothing is ended by it. All its
    workers have Ray's `runtime_env`; with a Ray that the process had initialised before, it
    cannot name local folders. With two `batches_at_worker` the next batch waits at its worker, so
    that the worker need not wait for the driver, and batches of a few milliseconds travel together,
    up to eight; with one it comes when the worker idles.

    At most `max_pending_mb` MiB of values (default: 60 % of the cluster's object store; None: no
    bound), and at most `max_pending` of them (default: no bound), are made or in the making whose
    last reader has not committed; values in the making are estimated from earlier ones. No stage
    is dispatched past that, unless nothing would move otherwise: a parent that alone needs more
    still passes. Stages may have bounds of their own. Rows and what `apply` holds are not counted.

    `policy` says which ready rows go next: "fifo", in the order of arrival; "canary", few rows of
    a parent until some of them have come back, so that little is done for one that fails early;
    "longest_first"; "unordered" and "single_parent", for comparisons; or a `Policy` of one's own.
    Outcomes are the same under each.

    `record` names a new file that gets every event of the run, but no value, to be replayed
    (`rayorch-prefect replay`), in folders that are made if need be; at about `record_mb` MiB it
    ends, and the run goes on.

    What stages log in their workers from `log_level` on ("OFF": nothing) is told to `on_line` as
    StageLines, by default to the logger `rayorch_prefect.stages`; at most 50 lines a second and
    1,000 in all for each microbatch, and what was left out is counted there.

    Raises on entering: UsageError for a runtime_env that Ray does not take or a recording that
    cannot be made, DoesNotFit if a stage
    fits no node, StageStartError if a stage cannot be built, ClusterError if workers do not
    become ready in time.
    """

    def __init__(
        self,
        program: Program,
        *,
        address: str | None = None,
        appliers: int = 4,
        start_timeout: float = 300.0,
        runtime_env: Mapping[str, Any] | None = None,
        batches_at_worker: int = 2,
        on_wait: Callable[[str], None] = logger.warning,
        still_after: float = STILL_AFTER_S,
        on_still: Callable[[str], None] = logger.warning,
        max_pending: int | None = None,
        max_pending_mb: float | str | None = AUTO,
        policy: str | Policy = FIFO,
        record: str | Path | None = None,
        record_mb: float = MOST_MB,
        log_level: str = WARNING,
        on_line: OnLine = log_line,
    ) -> None:
        if batches_at_worker not in (1, 2):
            raise UsageError(f"batches_at_worker is 1 or 2, not {batches_at_worker!r}")
        self._batches_at_worker = batches_at_worker
        self._bound_wanted = checked_bound(max_pending, max_pending_mb)
        self.bound = Bound(max_pending)
        policy_of(policy)
        self._policy = policy
        self.program = require_program(program)
        self.plan = program.plan
        self._record = record
        self._record_mb = record_mb
        self._log_level = checked_level(log_level)
        self._on_line = on_line
        self._address = address
        self._appliers_wanted = appliers
        self._start_timeout = start_timeout
        self._on_wait = on_wait
        self._on_still = on_still
        self._still = Standstill(still_after)
        self._runtime_env = dict(runtime_env or {})
        self._own_ray = False
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Nothing enters the inbox after its end mark, or a caller would wait for ever.
        self._door = threading.Lock()
        # What workers logged as they were closed.
        self._last_lines: list[LinesCame] = []
        self._calls = Calls()
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._driver: Driver | None = None
        self._backend: RayBackend | None = None
        self._appliers: Appliers | None = None
        self._ray_metrics: RayMetrics | None = None
        self._closed = False
        self._given_up = False

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        if self._thread is not None or self._closed:
            raise EngineClosed("an Engine is entered once; make another")
        self._own_ray = connect(self._address, checked(self._runtime_env))
        try:
            self._go_on()
            check_fit(self.plan)
            self._start()
            self._wait_ready()
        except BaseException:
            # Workers that are being built do not answer: nothing is worth waiting for.
            self._shut(GIVEN_UP_S if self._given_up else None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._shut()

    def leave(self, patience_s: float | None = None) -> None:
        """Leave it as `with` does; workers get `patience_s` seconds (default: 5) to put away."""
        self._shut(patience_s)

    def give_up(self) -> None:
        """Let entering end early with EngineClosed; from any thread. Later it does nothing."""
        self._given_up = True
        self._ready.set()

    def _start(self) -> None:
        # A job's environment holds for all its actors, and is fixed as the job connects.
        rest = {} if self._own_ray else self._runtime_env
        refuse_local_folders(rest)
        self._backend = RayBackend(
            self.plan, self._calls, self._receive, self._tell, rest, self._log_level
        )
        self.bound = bound_of(*self._bound_wanted, object_store_bytes())
        recorder = None if self._record is None else Recorder(self._record, self._record_mb)
        self._driver = Driver(
            self.plan,
            self._backend,
            time.time,
            self._batches_at_worker,
            policy=self._policy,
            bound=self.bound,
            recorder=recorder,
            on_line=self._on_line,
            shares_calls=self._batches_at_worker > 1,
        )
        self._appliers = Appliers(
            self._appliers_wanted, search_path(), self._calls, self._driver.renew, runtime_env=rest
        )
        self._thread = threading.Thread(target=self._loop, name="rayorch-engine", daemon=True)
        self._later(self._driver.start)
        self._thread.start()
        self._ray_metrics = RayMetrics(self.plan.name, lambda: self.metrics)
        self._ray_metrics.start()

    def _wait_ready(self) -> None:
        end = time.monotonic() + self._start_timeout
        while not self._ready.wait(min(WAIT_NOTICE_S, max(0.0, end - time.monotonic()))):
            waiting, left = self._waiting_for(), end - time.monotonic()
            if left <= 0:
                raise ClusterError(
                    f"workers were not ready within {self._start_timeout:g} s: {waiting}; "
                    "the cluster may be full: see `ray status`"
                )
            self._on_wait(
                f"waiting for resources: {waiting}; given up in {left:.0f} s "
                f"of {self._start_timeout:g}"
            )
        if self._live_driver.error is not None:
            raise self._live_driver.error
        self._go_on()

    def _go_on(self) -> None:
        if self._given_up:
            raise EngineClosed("the Engine was given up before its workers were ready")

    def _waiting_for(self) -> str:
        return waiting_text(self.plan, self._live_driver.scheduler.workers.starting)

    def _shut(self, patience_s: float | None = None) -> None:
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._inbox.put(None)
        try:
            if self._thread is not None:
                self._thread.join()
            if self._backend is not None:
                self._backend.close(END_S if patience_s is None else patience_s)
            if self._driver is not None:
                self._driver.lines.close(self._last_lines)
        finally:
            if self._ray_metrics is not None:
                self._ray_metrics.close()
            if self._own_ray:
                ray.shutdown()

    # -- the Engine's thread -------------------------------------------------------------------

    def _later(self, function: Callable[..., None], *args: Any) -> bool:
        """Have it done on the Engine's thread; False if the Engine has been left."""
        with self._door:
            if not self._closed:
                self._inbox.put(partial(function, *args))
            return not self._closed

    def _tell(self, message: BackendMessage) -> None:
        if not self._later(self._receive, message) and isinstance(message, LinesCame):
            self._last_lines.append(message)

    def _receive(self, message: BackendMessage) -> None:
        if isinstance(message, BatchReply | ChunksCame | WorkerIsReady):
            self._still.moved(time.monotonic())
        self._live_driver.receive(message)

    def _loop(self) -> None:
        driver = self._live_driver
        while self._turn(driver):
            pass
        driver.fail(EngineClosed("the Engine was left before the run had ended"))
        driver.chronicle.close()
        if self._appliers is not None:
            self._appliers.close()

    def _turn(self, driver: Driver) -> bool:
        """Do what has come, or wait for it; False at the end.

        A deadline comes after all that was told before it: a report may be among that.
        """
        next_tick = min(driver.next_deadline, self._still.next(driver.active > 0))
        left = next_tick - time.monotonic()
        if len(self._calls):
            over = self._calls.ended(self._nap(left) if self._inbox.empty() else 0.0)
            # It was asked before they were over, or as good as: a run that is abandoned, say.
            going_on = self._do_asked(driver)
            while over and going_on:
                self._take(driver, over.popleft())
        else:
            going_on = self._do_asked(driver, min(left, LONGEST_NAP_S))
        if going_on and left <= 0:
            self._take(driver, self._tick)
        return going_on

    def _nap(self, left: float) -> float:
        """How long to wait for calls: what others ask for meanwhile waits as long."""
        assert self._backend is not None
        return min(left, SHORT_NAP_S if self._backend.takes_portions else NAP_S)

    def _do_asked(self, driver: Driver, nap: float = 0.0) -> bool:
        """Do what other threads have asked for; waits so long for the first of it. False if it is
        to end."""
        for _ in range(max(1, self._inbox.qsize())):
            try:
                step = self._inbox.get(timeout=nap) if nap > 0 else self._inbox.get_nowait()
            except queue.Empty:
                break
            if step is None:
                return False
            self._take(driver, step)
            # What the step held (references to values) must not live until the next one.
            del step
            nap = 0.0
        return True

    def _tick(self) -> None:
        driver = self._live_driver
        driver.tick()
        lasted = self._still.due(time.monotonic(), driver.active > 0)
        if lasted is not None:
            self._say_still(f"nothing has moved for {lasted:.0f} s: {driver.standing()}")

    def _say_still(self, text: str) -> None:
        try:
            self._on_still(text)
        except Exception:
            logger.exception("on_still raised; it had been told: %s", text)

    def _take(self, driver: Driver, step: Callable[[], None]) -> None:
        """One step. After a defect the loop goes on, so that whoever asks gets its error."""
        try:
            step()
        except BaseException as error:
            logger.exception("the Engine's loop failed")
            driver.fail(error if isinstance(error, RayorchError) else InternalError(repr(error)))
        if self._backend is not None:
            self._backend.flush()
        if not self._ready.is_set() and (driver.error or driver.all_ready):
            self._ready.set()

    @property
    def _live_driver(self) -> Driver:
        if self._driver is None:
            raise EngineClosed("enter the Engine first: `with Engine(program) as engine:`")
        return self._driver

    # -- work ----------------------------------------------------------------------------------

    def submit(
        self,
        rows: Iterable[Any],
        *,
        keys: Sequence[str] | None = None,
        on_parent: OnParent | None = None,
        on_line: OnLine | None = None,
    ) -> Run:
        """Begin a microbatch of any picklable rows.

        Parents come by iterating over the Run or, each the moment it is complete and on the
        Engine's thread, through `on_parent`, which must be quick; it gets the error instead,
        once, if the Engine ends. A run whose `on_parent` raises is abandoned, and the log says
        so. `keys` name the rows in messages (default: their `uri`). `on_line` gets what stages log
        of these rows, on that thread too, in place of the Engine's.

        Raises EngineClosed outside of `with`; UsageError for rows that are no iterable, a row that
        cannot be pickled or another number of keys than of rows.
        """
        driver = self._live_driver
        listed = listed_rows(rows)
        run = Run(len(listed), self._abandon)
        names = row_keys(listed, keys)
        described = describe_rows(self.plan, listed)
        if not self._later(
            self._admit, driver, run, listed, names, described, on_parent or run.deliver, on_line
        ):
            raise EngineClosed("the Engine has been left")
        return run

    def _admit(
        self, driver: Driver, run: Run, rows: Sequence[Any], keys: Sequence[str], *rest: Any
    ) -> None:
        if rows:
            self._still.moved(time.monotonic())
            run.number = driver.submit(rows, keys, *rest)

    def run(self, rows: Iterable[Any]) -> Iterator[Parent]:
        """Each parent the moment it is complete, in completion order."""
        run = self.submit(rows)
        try:
            yield from run
        finally:
            run.abandon()

    def _abandon(self, run: Run) -> None:
        self._later(lambda: self._live_driver.abandon(run.number))

    def apply(self, function: Callable[..., Any], parent: Parent, *args: Any) -> Future[Any]:
        """Run `function(value, *args)` on an applier actor near the parent's value.

        The future has what it returns or raises; a call whose actor dies is tried again. Leaving
        the Engine gives EngineClosed to those that have not ended.

        Raises ParentNotCompleted if the parent has no value, EngineClosed outside of `with`.
        """
        future: Future[Any] = Future()
        appliers = self._appliers
        application = Application(function, parent.require_payload(), args, future)
        if appliers is None or not self._later(appliers.apply, application):
            raise EngineClosed("the Engine is not running")
        return future

    def cut_off(self, futures: Iterable[Future[Any]]) -> None:
        """End these calls of `apply`, with their actors: nothing of them goes on."""
        if self._appliers is not None:
            self._later(self._appliers.cut_off, list(futures))

    def story(self, source_key: str, path: str | Sequence[int] = ()) -> str:
        """What became of an Entity, for a person: `(3, 7)` or "3/7" is page 3's region 7 of the
        source row with that key, () the row itself.

        Each Call's Grain there: when it was ready and sent, in which batches to which workers, how
        each attempt ended, bars, its outcome; then what came of it at its parent. Works for rows
        that are active or ended not long ago, until and after the Engine is left. Raises
        UsageError for a key or path that is not there, EngineClosed before it was entered.
        """
        driver, told = self._live_driver, Future[str]()

        def tell() -> None:
            try:
                told.set_result(driver.chronicle.story(source_key, path))
            except Exception as error:
                told.set_exception(error)

        if threading.current_thread() is self._thread:
            tell()
        elif not self._later(tell):
            if self._thread is not None:
                self._thread.join()
            tell()
        return told.result()

    def show_parents(self, ended: Mapping[str, int]) -> None:
        """Have Ray's metrics show how many parents ended so far by row outcome, which the Engine
        does not know; from any thread."""
        if self._ray_metrics is not None:
            self._ray_metrics.parents_are(ended)

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot of the counters: per Call grains, batches and fill; retries, stale reports."""
        return snapshot(self._live_driver, self._appliers)
