"""The processes of one run: what they took, and their end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from benchmarks.workloads import MIB

SAMPLED_EVERY_S = 0.5
ENDS_WITHIN_S = 10.0


class Tree:
    """A process and its descendants; one seen once stays known when others adopt it."""

    def __init__(self, root: int) -> None:
        self._root = psutil.Process(root)
        self._known = {self._root}
        self._cpu: dict[psutil.Process, float] = {}
        self.private_mib = 0.0

    def sample(self) -> None:
        """Look at all that are there now: one pass over the machine's processes."""
        with contextlib.suppress(psutil.Error):
            self._known.update(self._root.children(recursive=True))
        private = 0.0
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                times, memory = process.cpu_times(), process.memory_info()
                self._cpu[process] = times.user + times.system
                private += (memory.rss - memory.shared) / MIB
        self.private_mib = max(self.private_mib, private)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all, as far as samples saw them."""
        return sum(self._cpu.values())

    def end(self) -> None:
        """Kill what is left; psutil checks that a pid is still the same process."""
        left: set[psutil.Process] = set()
        for process in self._known:
            with contextlib.suppress(psutil.Error):
                left.update((process, *process.children(recursive=True)))
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(list(left), timeout=ENDS_WITHIN_S)


def busy_s() -> float:
    """CPU seconds that the machine has worked since it started."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def watched(
    arguments: list[str], env: Mapping[str, str], said: Path, limit_s: float
) -> dict[str, float]:
    """Run `python ARGUMENTS` to its end, or kill it at the limit; `said` gets its output.

    Its exit status (-9 at the limit), seconds, peak of private MiB over all its processes, their
    CPU seconds, and how many cores other processes of the machine used meanwhile.
    """
    begun, busy = time.monotonic(), busy_s()
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, **env}, stdout=out, stderr=out
        )
        tree = Tree(process.pid)
        status: int | None = None
        while status is None and time.monotonic() - begun < limit_s:
            tree.sample()
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(SAMPLED_EVERY_S)
        took = time.monotonic() - begun
        others = max(0.0, busy_s() - busy - tree.cpu_s) / took
        tree.end()
        process.wait()
    return {
        "status": -9 if status is None else status,
        "process_s": took,
        "private_mib": round(tree.private_mib, 1),
        "cpu_s": round(tree.cpu_s, 2),
        "others_cores": round(others, 2),
    }
