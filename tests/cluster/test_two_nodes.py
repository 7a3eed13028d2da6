"""Two nodes: a stage that fits one of them, jobs that wait for each other, a Ray that stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cluster.drivers import LARGE

ROOT = Path(__file__).parents[2]

Start = Callable[..., "subprocess.Popen[str]"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Start a module of this folder as a process, with Ray files of its own; ended at the end.

    Ray notes the newest cluster there, where every other Ray of this machine would find it.
    """
    running: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory(prefix="rp", ignore_cleanup_errors=True) as folder:
        kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

        def start(
            module: str, *arguments: str, address: str = "", quiet: bool = False
        ) -> subprocess.Popen[str]:
            own = {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
            own |= {"RAY_ADDRESS": address} if address else {}
            pipe = subprocess.PIPE
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"tests.cluster.{module}", *arguments],
                    cwd=ROOT,
                    env={**kept, **own},
                    stdin=pipe,
                    stdout=pipe,
                    stderr=subprocess.DEVNULL if quiet else pipe,
                    text=True,
                )
            )
            return running[-1]

        yield start
        for process in reversed(running):
            ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Close its standard input; what it still wrote when it has ended."""
    try:
        return process.communicate(timeout=20)
    except ValueError:  # ended before
        return "", ""
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.fixture(scope="module")
def nodes(start: Start) -> tuple[subprocess.Popen[str], str]:
    nodes = start("nodes", quiet=True)
    line = one_line(nodes.stdout)
    assert line, "no cluster came up"
    return nodes, line


@pytest.fixture(scope="module")
def address(nodes: tuple[subprocess.Popen[str], str]) -> str:
    return nodes[1]


def one_line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    # Ray, too, says much there when a node dies.
    line = next((line for line in process.stdout if line.startswith("{")), "")
    assert line, ended(process)[1]
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_stage_runs_on_the_node_that_it_fits(start: Start, address: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    driver = start("drivers", "spread", str(notes), address=address)
    out, errors = driver.communicate(timeout=90)
    assert driver.returncode == 0, errors

    found = json.loads(out)
    first, second = found["nodes"]["first"], found["nodes"]["second"]
    assert first != second
    for name, rows in (("first", 6), ("again", 2)):
        children = [parent[0] for parent in found[name]]
        assert children == [
            [[first, second, LARGE * (row * 10 + child)] for child in range(3)]
            for row in range(rows)
        ]
        assert {parent[1] for parent in found[name]} <= {first, second}
    # Ray jobs were two, and each set up each node once.
    assert sorted(notes.read_text().split()) == sorted([first, second] * 2)


def test_a_ray_that_is_not_ours_stays(start: Start, address: str, tmp_path: Path) -> None:
    driver = start("drivers", "spread", str(tmp_path / "notes"), address=address)
    out, errors = driver.communicate(timeout=90)
    assert driver.returncode == 0, errors
    found = json.loads(out)
    assert found["connection_ended"], "the Engine had made the connection"
    assert set(found["nodes"]) == {"first", "second"}, "the cluster lives on"
    assert found["still_there"] in found["nodes"].values(), "the process's own connection too"


def test_a_job_waits_for_what_another_one_holds(start: Start, address: str) -> None:
    holder = start("drivers", "hold", address=address)
    assert said(holder) == {"held": True}
    waiter = start("drivers", "wait", address=address)
    waits = "stage far 1 of 1 (each needs second 1); free in the cluster: second 0"

    gave_up = said(waiter)
    assert f"not ready within 2.5 s: {waits}" in gave_up["error"]
    assert gave_up["connected"] is False

    seen = [one_line(waiter.stderr) for _ in range(4)]
    assert any(line.startswith(f"waiting for resources: {waits}; given up in ") for line in seen)
    ended(holder)
    assert said(waiter)["value"][2] == 3
    ended(waiter)
    assert waiter.returncode == 0


def test_a_row_on_another_node_is_held_to_its_limit(start: Start, address: str) -> None:
    driver = start("drivers", "limit", address=address)
    out, errors = driver.communicate(timeout=90)
    assert driver.returncode == 0, errors
    found = json.loads(out)
    assert found["values"] == [0, 1, 3, 4]
    assert "AttemptsExhausted[DeadlineExceeded] in stage stuck" in found["cause"]
    # Known by its row: once in the batch of five, once alone.
    assert found["deadlines"] == 2


def test_values_that_died_with_their_node_are_made_again(
    start: Start, nodes: tuple[subprocess.Popen[str], str]
) -> None:
    found = of_a_run_whose_second_node("kill", start, nodes)
    assert found["lost"] > 0
    assert 0 < found["remade"] <= 3 * 8
    assert found["workers"] == 1, "the stage's worker on the node that went"


def test_a_node_that_is_taken_away_in_order_charges_nobody(
    start: Start, nodes: tuple[subprocess.Popen[str], str]
) -> None:
    found = of_a_run_whose_second_node("drain", start, nodes)
    assert found["retries"] == 0


def test_outputs_that_died_before_they_were_uploaded_are_made_again(
    start: Start, nodes: tuple[subprocess.Popen[str], str]
) -> None:
    cluster, address = nodes
    driver = start("drivers", "lose_outputs", address=address, quiet=True)
    assert said(driver) == {"made": 4}
    asked(cluster, "kill")
    asked(cluster, "add")
    assert driver.stdin is not None
    driver.stdin.write("read\n")
    driver.stdin.flush()
    found = said(driver)
    ended(driver)
    assert found["read"] == [LARGE * row for row in range(1, 5)]
    assert found["lost"] > 0


def test_workers_that_die_with_their_node_before_their_first_start_end_no_run(
    start: Start, nodes: tuple[subprocess.Popen[str], str]
) -> None:
    cluster, address = nodes
    driver = start("drivers", "lose_idle", address=address, quiet=True)
    assert said(driver) == {"ready": True}
    asked(cluster, "kill")
    asked(cluster, "add")
    assert driver.stdin is not None
    driver.stdin.write("read\n")
    driver.stdin.flush()
    found = said(driver)
    ended(driver)
    assert found == {"read": [LARGE * row for row in range(4)], "workers": 4}


def of_a_run_whose_second_node(
    goes: str, start: Start, nodes: tuple[subprocess.Popen[str], str]
) -> dict[str, Any]:
    """What `drivers lose` says; all pages are made, and most wait to be read as the node goes."""
    cluster, address = nodes
    # Ray writes more about a dead node than a pipe holds.
    driver = start("drivers", "lose", address=address, quiet=True)
    assert said(driver)["first"] in range(8)
    asked(cluster, goes)
    asked(cluster, "add")
    found = said(driver)
    ended(driver)
    assert found["found"] == [
        [[row * 10 + child, LARGE * (row * 10 + child)] for child in range(3)] for row in range(8)
    ]
    return found


def asked(cluster: subprocess.Popen[str], what: str) -> None:
    assert cluster.stdin is not None
    cluster.stdin.write(f"{what}\n")
    cluster.stdin.flush()
    assert one_line(cluster.stdout) == what
