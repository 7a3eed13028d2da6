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

SAMPLED_EVERY_S = 0.2


class Tree:
    """A process and its descendants; those that are adopted by others stay known."""

    def __init__(self, root: int) -> None:
        self._known: dict[tuple[int, float], psutil.Process] = {}
        self._cpu: dict[tuple[int, float], float] = {}
        self.private_mib = 0.0
        self._add(psutil.Process(root))

    def _add(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error):
            self._known[process.pid, process.create_time()] = process

    def sample(self) -> None:
        """Look at all that are there now."""
        private = 0.0
        for key, process in list(self._known.items()):
            with contextlib.suppress(psutil.Error):
                for child in process.children():
                    self._add(child)
                times, memory = process.cpu_times(), process.memory_info()
                self._cpu[key] = times.user + times.system
                private += (memory.rss - memory.shared) / MIB
        self.private_mib = max(self.private_mib, private)

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all, as far as samples saw them."""
        return sum(self._cpu.values())

    def end(self) -> None:
        """Kill what is left of it; psutil checks that a pid is still the same process."""
        self.sample()
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(list(self._known.values()), timeout=10)


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
