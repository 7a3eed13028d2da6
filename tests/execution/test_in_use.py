"""Folders that live processes keep and dead ones leave: kept, swept, raced for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rayorch_prefect.execution.in_use import LOCK, sweep

AN_AGE = 7200.0
HOLD = """
import sys
from pathlib import Path
from rayorch_prefect.execution.in_use import hold
folder = hold(Path(sys.argv[1]))
(folder / "a.done").touch()
print("held", flush=True)
sys.stdin.read()
"""
RACE = """
import multiprocessing, random, sys, time
from pathlib import Path
from rayorch_prefect.execution import in_use

def once(root, seed):
    choose = random.Random(seed)
    folder = in_use.hold(Path(root, "session", "job", choose.choice("ab")))
    mark = folder / f"{seed}.done"
    mark.touch()
    for _ in range(20):
        in_use.sweep(Path(root), kept_s=-1)
        assert mark.exists() and (folder / in_use.LOCK).exists(), "swept under a living process"

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    for first in range(0, 60, 6):
        many = [context.Process(target=once, args=(sys.argv[1], first + i)) for i in range(6)]
        for each in many:
            each.start()
        for each in many:
            each.join()
            assert each.exitcode == 0
"""

Hold = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A process that keeps a folder."""
    processes = []

    def held(folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        return process

    yield held
    for process in processes:
        process.kill()
        process.communicate()


def aged(folder: Path) -> None:
    then = time.time() - AN_AGE
    os.utime(folder / LOCK, (then, then))


def test_what_a_living_process_uses_stays_and_goes_after_its_death(
    hold: Hold, tmp_path: Path
) -> None:
    folder = tmp_path / "session" / "job" / "node"
    first, second = hold(folder), hold(folder)
    aged(folder)
    assert sweep(tmp_path) == []
    first.kill()
    first.wait()
    assert sweep(tmp_path) == []
    second.kill()
    second.wait()
    assert sweep(tmp_path) == [folder]
    assert list(tmp_path.iterdir()) == []


def test_what_was_begun_lately_stays_though_nobody_uses_it(hold: Hold, tmp_path: Path) -> None:
    folder = tmp_path / "session" / "job" / "node"
    process = hold(folder)
    process.kill()
    process.wait()
    assert sweep(tmp_path) == []
    assert (folder / "a.done").exists()


def test_neighbours_are_let_alone(hold: Hold, tmp_path: Path) -> None:
    dead, living = tmp_path / "session" / "1" / "node", tmp_path / "session" / "2" / "node"
    process = hold(dead)
    hold(living)
    process.kill()
    process.wait()
    aged(dead)
    aged(living)
    assert sweep(tmp_path) == [dead]
    assert (living / "a.done").exists()
    assert not dead.parent.exists()


def test_who_begins_while_others_sweep_keeps_what_it_has(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
