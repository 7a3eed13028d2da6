"""Ends what is at work, at random: workers, uploaders, the second node."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray._private import state

from tests.soak.toy import Begun

# Seconds between two kills, and from one end of the node to the next.
PAUSE = (1.0, 5.0)
NODE_PAUSE = (15.0, 30.0)


class Killer:
    """A thread that kills, and counts what. Only what has begun its work is killed: three workers
    of a pool that die before are taken for a stage that cannot be started."""

    def __init__(self, seed: int, begun: Begun, nodes: subprocess.Popen[str]) -> None:
        self.killed: Counter[str] = Counter()
        self._choose = random.Random(seed)
        self._begun = begun
        self._nodes = nodes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")
        self.error: BaseException | None = None

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._kill_until_ended()
        except BaseException as error:
            self.error = error

    def _kill_until_ended(self) -> None:
        node_at = time.monotonic() + self._choose.uniform(*NODE_PAUSE) / 2
        while not self._ended.wait(self._choose.uniform(*PAUSE)):
            if time.monotonic() > node_at:
                self._kill_node()
                node_at = time.monotonic() + self._choose.uniform(*NODE_PAUSE)
            # One or two at once.
            for _ in range(self._choose.choice((1, 1, 2))):
                self._kill_one()

    def _kill_node(self) -> None:
        asked(self._nodes, "kill")
        self.killed["node"] += 1
        self._ended.wait(self._choose.uniform(0, 3))
        asked(self._nodes, "add")

    def _kill_one(self) -> None:
        if self._choose.random() < 0.3:
            self._kill("uploader", pids_of("ApplierActor"))
        else:
            self._kill("worker", [pid for pid in pids_of("WorkerActor") if self._begun.has(pid)])

    def _kill(self, what: str, pids: list[int]) -> None:
        pids = [pid for pid in pids if is_ours(pid)]
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self._choose.choice(pids), signal.SIGKILL)
                self.killed[what] += 1


def asked(nodes: subprocess.Popen[str], what: str) -> None:
    """Have the cluster do this."""
    assert nodes.stdin is not None
    assert nodes.stdout is not None
    nodes.stdin.write(f"{what}\n")
    nodes.stdin.flush()
    assert nodes.stdout.readline().strip() == what, "the cluster's process has ended"


ALIVE = "ALIVE"
COMING = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


def actors(*states: str) -> dict[str, Any]:
    """Those of the connected cluster in these states. Dead ones are never asked for: Ray knows
    the last 100,000, and to read them would be most of what this process grows by."""
    found: dict[str, Any] = {}
    for each in states:
        found |= state.actors(actor_state_name=each)
    return found


def alive_actors() -> dict[str, Any]:
    """Those that are not dead."""
    return actors(ALIVE, *COMING)


def pids_of(name: str) -> list[int]:
    """Processes of actors of this class."""
    alive = actors(ALIVE).values()
    return sorted(each["Pid"] for each in alive if each["ActorClassName"] == name and each["Pid"])


def is_ours(pid: int) -> bool:
    """Whether the process is still that of an actor: ids are used again."""
    try:
        return b"Actor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
