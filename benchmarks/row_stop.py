"""How soon a worker that runs rows learns that some of them need not start: `python -m
benchmarks row_stop`.

The driver tells a worker that is inside a batch; between rows the worker looks whether it has been
told, and says when it was. Ways to tell: a call on the actor's control group (what the Engine
does), a byte in memory that both have mapped, and a datagram on a Unix socket that the worker looks
at itself. Rows wait, compute in Python or in C, or hold the interpreter's lock for as long as they
take. All but these are short, as rows that take longer than the message say nothing. Both sides use
the node's monotonic clock.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

ROW_S = 0.001
LONGEST_S = 2.0
TIMES = 40
ROWS: dict[str, Callable[[], object]] = {
    "wait": lambda: time.sleep(ROW_S),
    "compute in Python": lambda: [each * each for each in range(20_000)],
    "hold the lock, 20 ms": lambda: sum(range(1_200_000)),
    "compute in C": lambda: hashlib.sha256(bytes(1_500_000)).digest(),
}
WAYS = ("call", "memory", "socket")


class Worker:
    """A batch thread, and a control group that answers meanwhile."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / "flag"
        self._file = os.open(path, os.O_RDWR)
        self._flag = mmap.mmap(self._file, 1)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(Path(folder) / "socket"))
        self._socket.setblocking(False)
        self._called = False

    def run(self, kind: str, way: str) -> float:
        """Rows until one way has told; when that was seen."""
        row, told = ROWS[kind], getattr(self, f"_told_by_{way}")
        end = time.monotonic() + LONGEST_S
        while not told() and time.monotonic() < end:
            row()
        seen = time.monotonic()
        self._called = False
        self._flag[0] = 0
        return seen

    @ray.method(concurrency_group="control")
    def tell(self) -> None:
        self._called = True

    def _told_by_call(self) -> bool:
        return self._called

    def _told_by_memory(self) -> bool:
        return bool(self._flag[0])

    def _told_by_socket(self) -> bool:
        try:
            return bool(self._socket.recv(1))
        except BlockingIOError:
            return False


def _delays(worker: Any, tell: Callable[[], object], kind: str, way: str) -> list[float]:
    """Milliseconds from telling to its being seen; each time at another moment of a batch."""
    found: list[float] = []
    for turn in range(TIMES):
        seen = worker.run.remote(kind, way)
        time.sleep(0.05 + 0.0013 * turn)
        began = time.monotonic()
        tell()
        at: Any = ray.get(seen)
        found.append((at - began) * 1000)
    return found


def main() -> None:
    """Prints the median, the 90th percentile and the longest of each way under each kind of row."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "flag").write_bytes(b"\0")
        options: Any = {"num_cpus": 1, "concurrency_groups": {"control": 1}}
        worker: Any = ray.remote(**options)(Worker).remote(folder)
        flag = mmap.mmap(os.open(Path(folder) / "flag", os.O_RDWR), 1)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ray.get(worker.tell.remote())
        ray.get(worker.run.remote("wait", "call"))
        tell: dict[str, Callable[[], object]] = {
            "call": lambda: worker.tell.remote(),
            "memory": lambda: flag.__setitem__(0, 1),
            "socket": lambda: sender.sendto(b"1", str(Path(folder) / "socket")),
        }
        for kind in ROWS:
            for way in WAYS:
                found = sorted(_delays(worker, tell[way], kind, way))
                print(
                    f"{kind:20} {way:7} {statistics.median(found):6.1f} ms, 90 % within "
                    f"{found[len(found) * 9 // 10]:6.1f}, longest {found[-1]:6.1f}",
                    flush=True,
                )
    ray.shutdown()
