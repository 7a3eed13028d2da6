"""Limits of batches and rows, kept on real workers from outside."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Any

import pytest

from rayorch_prefect import Engine, F, Parent, Program, program, stage
from tests.execution.conftest import Notes, eventually
from tests.execution.test_deaths import alive

LIMIT_S = 1.0
# A plain call that holds the interpreter's lock for as long as it takes.
asleep_with_the_lock = ctypes.PyDLL(None).sleep


class Sleeper:
    """Row 5 of all never ends; `how` it waits."""

    def __init__(self, notes: Notes, how: str, lethal: int = 5) -> None:
        self.notes = notes
        self.how = how
        self.lethal = lethal

    def __call__(self, row: int) -> int:
        self.notes.add(f"{os.getpid()} {row}")
        if row == self.lethal:
            (asleep_with_the_lock if self.how == "lock" else time.sleep)(600)
        return 10 * row


class WholeBatch(Sleeper):
    def __call__(self, rows: Any) -> Any:
        return [super(WholeBatch, self).__call__(row) for row in rows]


def within(sleeper: Any, notes: Notes, how: str, **options: Any) -> Program:
    @program
    def slow(source: Any) -> Any:
        work = stage(sleeper, retry_budget=2, **options)(notes, how)
        return F.reduce(work(F.expand(source, domain="child")), on_failure="skip")

    return slow


def by_index(engine: Engine, rows: Any) -> dict[int, Parent]:
    return {parent.index: parent for parent in engine.run(rows)}


def pids(notes: Notes, row: int) -> list[int]:
    """The processes that have begun a row."""
    return [int(pid) for pid, noted in map(str.split, notes.lines()) if noted == str(row)]


@pytest.mark.parametrize("how", [pytest.param("sleep", marks=pytest.mark.slow), "lock"])
def test_a_row_at_its_limit_costs_itself_alone(cluster: str, notes: Notes, how: str) -> None:
    slow = within(Sleeper, notes, how, rowwise=True, batch_size=9, row_limit_s=LIMIT_S)
    begun = time.monotonic()
    with Engine(slow) as engine:
        parents = by_index(engine, [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
        metrics = engine.metrics
    assert [list(parents[row].value()) for row in range(3)] == [[0, 10, 20], [30, 40], [60, 70, 80]]
    (gap,) = parents[1].gaps
    assert (gap.path, gap.cause.type, gap.cause.attempts) == ((2,), "DeadlineExceeded", 2)
    assert gap.cause.message == "stage Sleeper was ended past row_limit_s=1"
    assert (metrics.deadlines_passed, metrics.workers_lost) == (2, 0)
    # Once in its batch and once alone; those before it ran again, those after it just once.
    assert len(pids(notes, 5)) == 2
    assert [len(pids(notes, row)) for row in (4, 6)] == [2, 1]
    eventually(lambda: not any(map(alive, pids(notes, 5))))
    assert time.monotonic() - begun < 60


@pytest.mark.slow
def test_a_batch_at_its_limit_is_halved(cluster: str, notes: Notes) -> None:
    slow = within(WholeBatch, notes, "lock", batch_size=4, batch_limit_s=LIMIT_S)
    with Engine(slow) as engine:
        parents = by_index(engine, [[4, 5, 6, 7]])
    assert list(parents[0].value()) == [40, 60, 70]
    (gap,) = parents[0].gaps
    assert gap.cause.message == "stage WholeBatch was ended past batch_limit_s=1"
    assert len(pids(notes, 5)) == 4
    eventually(lambda: not any(map(alive, pids(notes, 5))))


class Slow:
    """Each row takes most of the limit."""

    def __call__(self, row: int) -> int:
        time.sleep(0.65 * LIMIT_S)
        return row


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["batch_limit_s", "row_limit_s"])
def test_what_waits_for_its_turn_has_no_clock_running(cluster: str, limit: str) -> None:
    """Neither the second batch at a worker nor the second row of a batch."""
    batch_size = 1 if limit == "batch_limit_s" else 4
    options: Any = {limit: LIMIT_S, "batch_size": batch_size}

    @program
    def slow(source: int) -> Any:
        return stage(Slow, rowwise=True, retry_budget=1, **options)()(source)

    with Engine(slow, batches_at_worker=2) as engine:
        assert {row: parent.value() for row, parent in by_index(engine, range(4)).items()} == {
            row: row for row in range(4)
        }
        assert engine.metrics.deadlines_passed == 0


def late_riser(row: int) -> int:
    time.sleep(0.4 * row)
    return row


def test_a_busy_driver_ends_no_worker_that_has_reported(cluster: str) -> None:
    """The report of row 1 arrives in time, but is read after the limit."""

    @program
    def reported(source: int) -> Any:
        return stage(late_riser, replicas=2, retry_budget=1, batch_limit_s=0.8)(source)

    ended: list[Any] = []
    done = threading.Event()

    def keep_busy(parent: Any) -> None:
        ended.append(parent)
        time.sleep(1.2)
        if len(ended) == 2:
            done.set()

    with Engine(reported) as engine:
        engine.submit(range(2), on_parent=keep_busy)
        assert done.wait(60)
        assert [parent.value() for parent in ended] == [0, 1]
        assert engine.metrics.deadlines_passed == 0
