"""One log of stage calls for every system, and what is read from it.

Each worker appends a line a call to a file of its own in the job's folder; the file appears when
the worker is built, so their number also tells who is ready.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.workloads import Workload

STAGES = ("render", "read", "assemble", "upload")
GATE_S = 60.0


@dataclass(frozen=True)
class Job:
    """A workload, the folder of its call log, and how many workers the first call waits for."""

    workload: Workload
    folder: str
    awaited: int


class Call(NamedTuple):
    """One call of a stage: Unix times in seconds, rows, CPU seconds of its thread."""

    stage: str
    begun: float
    ended: float
    rows: int
    cpu_s: float


class CallLog:
    """What one worker did."""

    def __init__(self, job: Job, stage: str) -> None:
        self._job, self._stage = job, stage
        name = f"{stage}-{os.getpid()}-{time.monotonic_ns()}.calls"
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self._file = os.open(Path(job.folder) / name, flags, 0o644)
        self._waited = stage != "render"
        self._begun, self._cpu = 0.0, 0.0

    def begin(self) -> None:
        """The first render call waits for all workers, which keeps their start out of the time."""
        if not self._waited:
            self._waited = True
            give_up = time.monotonic() + GATE_S
            while self._present() < self._job.awaited and time.monotonic() < give_up:
                time.sleep(0.02)
        self._begun, self._cpu = time.time(), time.thread_time()

    def _present(self) -> int:
        return sum(1 for _ in Path(self._job.folder).glob("*.calls"))

    def end(self, rows: int) -> None:
        """Write the call that began last."""
        cpu = time.thread_time() - self._cpu
        line = f"{self._stage},{self._begun:.6f},{time.time():.6f},{rows},{cpu:.6f}\n"
        os.write(self._file, line.encode())


def calls_in(folder: str) -> list[Call]:
    """Every call, by the time it began."""
    found: list[Call] = []
    for path in Path(folder).glob("*.calls"):
        for line in path.read_text().splitlines():
            stage, begun, ended, rows, cpu = line.split(",")
            found.append(Call(stage, float(begun), float(ended), int(rows), float(cpu)))
    return sorted(found, key=lambda call: call.begun)
