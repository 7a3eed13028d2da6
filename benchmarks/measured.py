"""From a system's outputs and the call log to the figures of one run."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.bodies import Output, expected_digests
from benchmarks.calls import STAGES, Call, Job, calls_in
from benchmarks.workloads import MIB, Workload


class Measuring:
    """Opened once the system is there and before it gets its work; `ended` closes it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._called = time.time()
        self._before = rss_mib()

    def ended(
        self, outputs: Sequence[Output], at: float | None = None, **extra: Any
    ) -> dict[str, Any]:
        """The figures: seconds from the first call's start to now (or `at`), MiB of the driver.

        `complete` says that each document is there once, in order, and with the expected text.
        """
        now, after = at or time.time(), rss_mib()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        memory = {"before": self._before, "after": after, "peak": peak}
        calls = calls_in(self._job.folder)
        figures = {
            **timed(self._job.workload, calls, now),
            "startup_s": calls[0].begun - self._called,
            "driver_mib": {name: round(value, 1) for name, value in memory.items()},
            "complete": complete(self._job.workload, outputs),
            "digest": digest_of(outputs),
        }
        return {**figures, **extra}


def timed(workload: Workload, calls: Sequence[Call], now: float) -> dict[str, Any]:
    """What the log says; the times are seconds since the first call began."""
    first = calls[0].begun
    ends = {
        stage: [call.ended - first for call in calls if call.stage == stage] for stage in STAGES
    }
    rows = {stage: sum(call.rows for call in calls if call.stage == stage) for stage in STAGES}
    last_page, last_document = max(ends["read"]), max(ends[workload.last_stage])
    return {
        "wall_s": now - first,
        "first_document_s": min(ends[workload.last_stage]),
        "last_page_s": last_page,
        "tail_s": last_document - last_page,
        "calls": {stage: len(ends[stage]) for stage in STAGES},
        "rows": rows,
        "fill": rows["read"] / len(ends["read"]) / workload.batch,
        "stage_cpu_s": sum(call.cpu_s for call in calls),
        "never_read": never_read(workload, rows["read"]),
    }


def never_read(workload: Workload, read: int) -> float:
    """Of the pages beside a poisonous one, the share that no worker has read."""
    pages = {document.number: document.pages for document in workload.documents}
    beside = sum(pages[number] - 1 for number, _ in workload.poison)
    return (workload.pages - read) / beside if beside else 0.0


def complete(workload: Workload, outputs: Sequence[Output]) -> bool:
    """Whether every document came out once, whole, in order, and right where that is known."""
    pages = {document.number: document.pages for document in workload.documents}
    for number, _ in workload.poison:
        del pages[number]
    if sorted(output["document"] for output in outputs) != sorted(pages):
        return False
    expected = expected_digests(workload)
    return all(
        output["ordered"]
        and output["pages"] == pages[output["document"]]
        and (expected is None or output["digest"] == expected[output["document"]])
        for output in outputs
    )


def digest_of(outputs: Sequence[Output]) -> str:
    """Equal for equal outputs, in whatever order they came."""
    lines = sorted((output["document"], output["digest"]) for output in outputs)
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:16]


def rss_mib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
