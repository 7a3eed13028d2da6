"""When a worker is looked at, and what is seen of it."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import Any

import numpy as np

from rayorch_prefect.execution.batch import references
from rayorch_prefect.execution.deadlines import LOOK_AGAIN_S, UNSEEN_S, Deadlines
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.local_backend import LocalBackend
from rayorch_prefect.execution.marker import NO_ROW, Marker, Place, read
from rayorch_prefect.execution.rows import describe_rows
from rayorch_prefect.program import Plan, program, stage


def as_it_is(row: object) -> object:
    return row


def plan(**options: Any) -> Plan:
    @program
    def limited(source: Any) -> Any:
        return stage(as_it_is, **options)(source)

    return limited.plan


def batches(deadlines: Deadlines, now: float) -> tuple[list[int], list[int]]:
    late, suspects = deadlines.due(now)
    return [one.batch for one in late], [one.batch for one in suspects]


def test_a_batch_is_late_once_its_time_is_over() -> None:
    deadlines = Deadlines(plan(batch_limit_s=5))
    assert deadlines.next == math.inf
    deadlines.runs(1, 0, 7, 4, 100.0)
    deadlines.runs(1, 0, 7, 4, 103.0)
    assert deadlines.next == 105.0
    assert batches(deadlines, 104.9) == ([], [])
    assert batches(deadlines, 105.0) == ([7], [])
    assert batches(deadlines, 200.0) == ([], [])


def test_the_next_batch_has_its_own_time() -> None:
    deadlines = Deadlines(plan(batch_limit_s=5))
    deadlines.runs(1, 0, 7, 4, 100.0)
    deadlines.runs(1, 0, 8, 4, 104.0)
    assert batches(deadlines, 105.0) == ([], [])
    assert deadlines.next == 109.0
    deadlines.stops(1)
    assert batches(deadlines, 109.0) == ([], [])
    assert deadlines.next == math.inf


def test_a_row_is_looked_at_when_it_may_be_late() -> None:
    deadlines = Deadlines(plan(row_limit_s=3))
    deadlines.runs(1, 0, 7, 4, 100.0)
    assert batches(deadlines, 103.0) == ([], [7])
    assert deadlines.seen(1, 7, Place(7, 2, 1.0), 103.0) is None
    assert deadlines.next == 105.0
    assert batches(deadlines, 105.0) == ([], [7])
    assert deadlines.seen(1, 7, Place(7, NO_ROW, 9.0), 105.0) is None
    assert batches(deadlines, 108.0) == ([], [7])
    assert deadlines.seen(1, 7, Place(6, 2, 9.0), 108.0) is None, "the batch before"
    assert deadlines.next == 111.0
    assert deadlines.seen(1, 7, Place(7, 3, 3.0), 108.0) == 3


def test_an_answer_that_comes_too_late_says_nothing() -> None:
    deadlines = Deadlines(plan(row_limit_s=3))
    deadlines.runs(1, 0, 8, 4, 100.0)
    assert deadlines.seen(1, 7, Place(7, 3, 30.0), 101.0) is None
    assert deadlines.seen(2, 8, Place(8, 3, 30.0), 101.0) is None


def test_a_worker_that_cannot_be_seen_has_the_time_of_all_its_rows() -> None:
    deadlines = Deadlines(plan(row_limit_s=3))
    deadlines.runs(1, 0, 7, 4, 100.0)
    assert batches(deadlines, 103.0) == ([], [7])
    assert deadlines.seen(1, 7, None, 103.0) is None
    assert deadlines.next == 103.0 + LOOK_AGAIN_S
    assert batches(deadlines, 103.0 + LOOK_AGAIN_S) == ([], [7])
    assert batches(deadlines, 112.0 + UNSEEN_S) == ([7], [])


def test_many_workers_are_looked_at_in_time() -> None:
    deadlines = Deadlines(plan(row_limit_s=3, batch_limit_s=60))
    for worker in range(50):
        deadlines.runs(worker, 0, worker, 4, 100.0 + worker % 7)
    looked: list[int] = []
    while deadlines.next < 109.5:
        now = deadlines.next
        late, suspects = deadlines.due(now)
        assert not late
        for one in suspects:
            assert now >= one.began + 3.0
            looked.append(one.worker)
    assert sorted(looked) == list(range(50))


def test_another_process_reads_where_a_worker_is() -> None:
    marker = Marker()
    marker.between_rows(12)
    marker.row(3)
    code = f"from rayorch_prefect.execution.marker import read; print(read({marker.path!r}))"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.startswith("Place(batch=12, row=3, row_s=")
    place = read(marker.path)
    assert place is not None
    assert 0 <= place.row_s < 60
    marker.between_rows(12)
    place = read(marker.path)
    assert place is not None
    assert (place.batch, place.row) == (12, NO_ROW)
    path = marker.path
    marker.close()
    assert read(path) is None


def large(row: int) -> Any:
    return np.full(300_000, row)


def total(numbers: Any) -> int:
    return int(numbers.sum())


def test_a_batch_that_waits_for_what_is_made_again_has_no_clock_running() -> None:
    @program
    def summed(source: Any) -> Any:
        return stage(total)(stage(large, batch_limit_s=5)(source))

    now = [0.0]
    plan = summed.plan
    backend = LocalBackend(plan)
    driver = Driver(plan, backend, time.time, 1, timer=lambda: now[0])
    driver.start()
    rows = list(range(4))
    driver.submit(rows, list("abcd"), describe_rows(plan, rows), lambda parent: None)

    def step() -> None:
        message = backend.step()
        assert message is not None
        driver.receive(message)

    def passed_after_long() -> int:
        now[0] += 100
        driver.tick()
        return driver.scheduler.counts.deadlines_passed

    def waiting() -> list[tuple[int, int]]:
        """Call and batch of what was sent and has not run; batches below 0 make again."""
        return [(message.call, batch) for _, batch, message in backend._sent]

    while [call for call, _ in waiting()[:1]] != [1]:
        step()
    # What the second stage is to read is lost.
    for ref in references(backend._sent[0][2].chunks):
        ref.chunks = None
    while (0, -1) not in waiting()[:1]:
        step()
    assert [call for call, _ in waiting()] == [0, 0]
    assert passed_after_long() == 0
    step()
    assert passed_after_long() == 1
