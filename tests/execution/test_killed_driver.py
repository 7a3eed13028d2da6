"""Two drivers on one cluster, one of them killed: nothing of it is left, and all of the other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray._private import state

from rayorch_prefect import Engine, program, stage
from tests.execution.conftest import Notes, alive_actors, eventually

SECONDS = 30.0


def named(value: str) -> str:
    return f"{value} {os.getpid()}"


class Slow:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, values: list[str]) -> list[str]:
        self.notes.add(f"worker {os.getpid()}")
        return [f"{value} {os.getpid()}" for value in values]


def uploading(value: str, notes: Notes) -> None:
    """Never ends by itself."""
    notes.add(f"uploader {os.getpid()}")
    time.sleep(600)


def doing(notes: Notes) -> Any:
    @program
    def does(row: Any) -> Any:
        return stage(Slow, replicas=2, num_cpus=0.5)(notes)(stage(named, num_cpus=0.5)(row))

    return does


def drive(notes: Notes) -> None:
    """Be at work in a stage's workers and an uploader until killed."""
    with Engine(doing(notes)) as engine:
        (parent,) = engine.run(["a"])
        engine.apply(uploading, parent, notes).result()


@pytest.fixture
def driver(cluster: str, notes: Notes) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.execution.test_killed_driver", str(notes.path)],
        env={**os.environ, "RAY_ADDRESS": cluster, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process
    process.kill()
    process.wait()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
def test_no_actor_of_a_killed_driver_is_left(
    driver: subprocess.Popen[bytes], notes: Notes, tmp_path: Path
) -> None:
    with Engine(doing(Notes(tmp_path / "own"))) as engine:
        eventually(lambda: any(line.startswith("uploader") for line in notes.lines()), 90)
        pids = [int(line.split()[1]) for line in notes.lines()]
        of_both = state.actors()
        jobs = {each["JobID"] for each in of_both.values() if each["Pid"] in pids}
        assert len(jobs) == 1
        theirs = {name for name, each in of_both.items() if each["JobID"] in jobs}
        assert len(theirs & alive_actors()) >= 4  # three of the stages, an uploader
        # Named or detached ones would outlive their job.
        assert {each["Name"] for name, each in of_both.items() if name in theirs} == {""}

        driver.kill()
        driver.wait()

        eventually(lambda: not theirs & alive_actors(), SECONDS)
        eventually(lambda: not any(map(is_alive, pids)), SECONDS)
        assert [parent.row for parent in engine.run(["b", "c"])]
        assert alive_actors() - theirs


if __name__ == "__main__":
    from tests.execution import test_killed_driver

    test_killed_driver.drive(Notes(Path(sys.argv[1])))
