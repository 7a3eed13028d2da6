"""An Engine's counters among Ray's own metrics, from where Prometheus takes them.

A thread looks at the counters once a second and hands on what has been added, so the run itself
does nothing for it. Ray brings the numbers to its agent on this node every 10 s (its
`metrics_report_interval_ms`), and shows them at the node's metrics export port with the prefix
`ray_`. Where Ray's metrics are off, nothing comes of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import cache

from ray.util.metrics import Counter, Gauge

from rayorch_prefect.execution.metrics import CallMetrics, EngineMetrics

logger = logging.getLogger(__name__)

UPDATE_S = 1.0
_STAGE = ("program", "stage")


@cache
def _counter(name: str, text: str, *tags: str) -> Counter:
    # One of a name a process: several Engines add to it.
    return Counter(name, text, tags)


@cache
def _gauge(name: str, text: str, *tags: str) -> Gauge:
    return Gauge(name, text, tags)


def _rows() -> Counter:
    return _counter("rayorch_rows_total", "Rows sent to workers in batches", *_STAGE)


def _batches() -> Counter:
    return _counter("rayorch_batches_total", "Batches sent to workers", *_STAGE)


def _failures() -> Counter:
    return _counter("rayorch_failures_total", "Grains that have failed for good", *_STAGE)


def _retries() -> Counter:
    return _counter("rayorch_retries_total", "Grains that were tried again", "program")


def _workers_lost() -> Counter:
    return _counter("rayorch_workers_lost_total", "Workers that died", "program")


def _parents() -> Counter:
    text = "Source rows by what became of them"
    return _counter("rayorch_parents_total", text, "program", "outcome")


def _waiting() -> Gauge:
    return _gauge("rayorch_rows_waiting", "Rows that are ready and at no worker", *_STAGE)


def _busy() -> Gauge:
    text = "Share of its workers' time that a stage spent in its own code, in the last second"
    return _gauge("rayorch_busy_share", text, *_STAGE)


class RayMetrics:
    """Hands on what `look` finds from `start` until `close`; whatever Ray says, the run goes on."""

    def __init__(self, program: str, look: Callable[[], EngineMetrics]) -> None:
        self._program = program
        self._look = look
        self._handed: dict[tuple[str, ...], float] = {}
        self._busy_s: dict[str, float] = {}
        self._looked_at = time.monotonic()
        self._parents: Mapping[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rayorch-metrics", daemon=True)

    def start(self) -> None:
        """Begin to hand on."""
        self._thread.start()

    def parents_are(self, ended: Mapping[str, int]) -> None:
        """How many parents have ended so far, by row outcome; from any thread."""
        self._parents = dict(ended)

    def close(self) -> None:
        """Hand on the last numbers; nothing waits any more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(UPDATE_S):
                self._update()
            self._update()
        except Exception:
            logger.warning("the Engine's counters are not in Ray's metrics any more", exc_info=True)

    def _update(self) -> None:
        now = self._look()
        at = time.monotonic()
        seconds, self._looked_at = at - self._looked_at, at
        for stage in {call.stage for call in now.calls}:
            # One class may be used in several Calls.
            self._of_stage(stage, [call for call in now.calls if call.stage == stage], seconds)
        tags = {"program": self._program}
        self._total(_retries(), now.retries, tags)
        self._total(_workers_lost(), now.workers_lost, tags)
        for outcome, n in self._parents.items():
            self._total(_parents(), n, {**tags, "outcome": outcome})

    def _of_stage(self, stage: str, calls: list[CallMetrics], seconds: float) -> None:
        tags = {"program": self._program, "stage": stage}
        self._total(_rows(), sum(call.rows for call in calls), tags)
        self._total(_batches(), sum(call.batches for call in calls), tags)
        self._total(_failures(), sum(call.failed for call in calls), tags)
        over = self._over.is_set()
        _waiting().set(0 if over else sum(call.ready for call in calls), tags)
        busy_s = sum(call.busy_s for call in calls)
        worked = seconds * sum(call.workers for call in calls)
        busy = (busy_s - self._busy_s.get(stage, 0.0)) / worked if worked else 0.0
        self._busy_s[stage] = busy_s
        _busy().set(0.0 if over else min(1.0, busy), tags)

    def _total(self, counter: Counter, total: float, tags: Mapping[str, str]) -> None:
        """Add to a counter what has come to its total."""
        key = (str(counter.info["name"]), *tags.values())
        added = total - self._handed.get(key, 0)
        if added > 0:
            counter.inc(added, dict(tags))
            self._handed[key] = total
