"""Workers that are replaced after some batches, or when they have grown."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, Parent, Program, program, run_local, stage
from rayorch_prefect.errors import StageStartError
from tests.execution.conftest import Notes, eventually
from tests.execution.test_deaths import alive

MIB = 1024 * 1024


class Worker:
    """Notes its batches and its end; grows by `grows_mb` with each."""

    def __init__(self, notes: Notes, grows_mb: int = 0) -> None:
        self.notes = notes
        self.grows_mb = grows_mb
        self.kept: list[Any] = []
        notes.add(f"built {os.getpid()}")

    def __call__(self, rows: list[int]) -> list[int]:
        self.kept.append(np.ones(self.grows_mb * MIB // 8))
        self.notes.add(f"batch {os.getpid()}")
        return [10 * row for row in rows]

    def close(self) -> None:
        self.notes.add(f"closed {os.getpid()}")


def recycled(notes: Notes, grows_mb: int = 0, **options: Any) -> Program:
    @program
    def works(row: Any) -> Any:
        return stage(Worker, batch_size=2, retry_budget=1, **options)(notes, grows_mb)(row)

    return works


def pids(notes: Notes, what: str) -> list[str]:
    return [line.split()[1] for line in notes.lines() if line.startswith(what)]


def assert_right(parents: list[Parent]) -> None:
    assert {parent.index: parent.value() for parent in parents} == {
        row: 10 * row for row in range(12)
    }
    assert {parent.attempts for parent in parents} == {1}


def test_a_worker_is_replaced_after_its_batches(cluster: str, notes: Notes) -> None:
    with Engine(recycled(notes, recycle_after_batches=2)) as engine:
        assert_right(list(engine.run(range(12))))
        metrics = engine.metrics
        eventually(lambda: len(pids(notes, "closed")) == 3)
    batches = pids(notes, "batch")
    assert [batches.count(pid) for pid in dict.fromkeys(batches)] == [2, 2, 2]
    assert set(batches) <= set(pids(notes, "closed"))
    assert (metrics.workers_recycled, metrics.workers_lost, metrics.retries) == (3, 0, 0)
    eventually(lambda: not any(alive(int(pid)) for pid in pids(notes, "built")))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured on Linux")
def test_a_worker_is_replaced_when_it_has_grown(cluster: str, notes: Notes) -> None:
    with Engine(recycled(notes, grows_mb=200, recycle_above_mb=400)) as engine:
        assert_right(list(engine.run(range(12))))
        recycled_workers = engine.metrics.workers_recycled
        eventually(lambda: len(pids(notes, "closed")) == recycled_workers)
    # With two batches at a worker one more is done there after it was found too large.
    batches = pids(notes, "batch")
    assert recycled_workers >= 1
    assert all(batches.count(pid) <= 3 for pid in batches)


def test_a_run_in_this_process_recycles_too(notes: Notes) -> None:
    assert_right(list(run_local(recycled(notes, recycle_after_batches=2), range(12))))
    assert len(pids(notes, "batch")) == 6
    assert len(pids(notes, "built")) == len(pids(notes, "closed")) == 4


class BuiltOnce:
    """Its constructor works for the first `replicas` workers only."""

    def __init__(self, notes: Notes, replicas: int) -> None:
        self.notes = notes
        self.first = notes.first_time("built") or (replicas > 1 and notes.first_time("again"))
        if not self.first:
            raise ValueError("the licence server is full")

    def __call__(self, row: int) -> int:
        if row == 3 and self.notes.first_time("death"):
            os._exit(1)
        time.sleep(0.05)
        return row


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_constructor_that_fails_in_mid_run_ends_it(
    cluster: str, notes: Notes, replicas: int
) -> None:
    """Also where another worker of the pool still goes on."""

    @program
    def works(row: Any) -> Any:
        return stage(BuiltOnce, rowwise=True, replicas=replicas)(notes, replicas)(row)

    ended: list[int] = []

    def until_it_ends() -> None:
        with Engine(works) as engine:
            ended.extend(parent.index for parent in engine.run(range(2000)))

    with pytest.raises(StageStartError) as caught:
        until_it_ends()
    assert "stage BuiltOnce" in str(caught.value)
    assert "ValueError: the licence server is full" in str(caught.value)
    assert {0, 1, 2} <= set(ended)
    assert len(ended) < 2000
