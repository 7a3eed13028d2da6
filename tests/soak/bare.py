"""What Ray alone keeps of each actor that died: `python -m tests.soak.bare ADDRESS ROUNDS`.

No line of ours: actors with as many concurrency groups and calls as a worker has are killed with
a call running, one waiting and one that watches. Prints the bytes of this process that stay of
each, after a warm-up.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from concurrent.futures import wait
from typing import Any

import ray

from tests.soak.memory import private_bytes

AT_ONCE = 4
WARM_UP = 4


class Bare:
    """Answers who it is, and stays in its other calls."""

    def pid(self) -> int:
        return os.getpid()

    def run(self) -> None:
        time.sleep(3600)

    def watch(self) -> None:
        time.sleep(3600)


def one_round(actor_class: Any) -> None:
    """Start some actors, kill them and forget them."""
    actors = [actor_class.remote() for _ in range(AT_ONCE)]
    pids = ray.get([actor.pid.remote() for actor in actors])
    calls = [call for each in actors for call in (each.run, each.run, each.watch)]
    ends = [call.remote().future() for call in calls]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait(ends)


def main(address: str, rounds: int) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    ray.method(concurrency_group="watch")(Bare.watch)
    groups: Any = {"concurrency_groups": {"control": 1, "watch": 1}}
    actor_class = ray.remote(**groups, num_cpus=0, max_restarts=0, max_task_retries=0)(Bare)
    for _ in range(WARM_UP):
        one_round(actor_class)
    before = private_bytes()
    for _ in range(rounds):
        one_round(actor_class)
    time.sleep(1)
    print(f"bytes {(private_bytes() - before) / (rounds * AT_ONCE):.0f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
