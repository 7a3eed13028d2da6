"""Workers with several rows in flight: each row ends on its own, and suspects are isolated."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import (
    BatchReported,
    BatchTakenBack,
    DeadlinePassed,
    DispatchBatch,
    EndWorker,
    TakeBack,
    WorkerLost,
    WorkerWorn,
)
from rayorch_prefect.model.reports import RowFailure
from tests.scheduler.scenes import SPOILED, Scene, pages_read


def scene_of(rows: int, **options: Any) -> Scene:
    scene = Scene(pages_read("skip", **{"concurrency": 4, **options}))
    scene.admit(1, [rows])
    return scene


def row_of(order: DispatchBatch) -> int:
    ((_, first, end),) = order.ranges
    assert end == first + 1 == first + order.rows
    return first


def at_workers(scene: Scene) -> dict[int, list[int]]:
    """The rows that each worker holds."""
    found: dict[int, list[int]] = {}
    for order in scene.sent:
        found.setdefault(order.worker, []).append(row_of(order))
    return found


def end(scene: Scene, row: int, failure: RowFailure | None = None) -> DispatchBatch:
    (order,) = [order for order in scene.sent if row_of(order) == row]
    scene.sent.remove(order)
    report = scene.report(order, failures={0: failure} if failure else None)
    scene.tell(BatchReported(order.batch, order.worker, report))
    return order


def lose(scene: Scene, worker: int, *, charge: bool = True) -> None:
    scene.sent = [order for order in scene.sent if order.worker != worker]
    scene.tell(WorkerLost(worker, 0, "WorkerDied", "killed", charge))


def test_rows_are_spread_and_a_few_wait_where_all_places_are_taken() -> None:
    scene = scene_of(20, replicas=2)
    assert at_workers(scene) == {1: [0, 2, 4, 6, 8], 2: [1, 3, 5, 7, 9]}


def test_a_slow_row_holds_up_nothing() -> None:
    scene = scene_of(8)
    for row in range(1, 8):
        end(scene, row)
    assert at_workers(scene) == {1: [0]}
    assert scene.outcomes("Read") == ["PENDING", *["PRESENT"] * 7]


def test_a_row_that_waits_is_asked_back_where_another_worker_has_a_place() -> None:
    scene = scene_of(10, replicas=2)
    for row in (1, 3):
        end(scene, row)
    (asked,) = [one for one in scene.told if isinstance(one, TakeBack)]
    waits = next(order for order in scene.sent if order.batch == asked.batch)
    assert (waits.worker, row_of(waits)) == (1, 8)
    scene.sent.remove(waits)
    scene.tell(BatchTakenBack(asked.batch, asked.worker))
    assert at_workers(scene) == {1: [0, 2, 4, 6], 2: [5, 7, 9, 8]}
    assert scene.scheduler.counts.retries == 0


def test_the_suspects_of_a_death_are_halved_until_the_culprit_stands_alone() -> None:
    scene = scene_of(5, retry_budget=2)
    tried: list[list[int]] = []
    while held := at_workers(scene):
        ((worker, rows),) = held.items()
        tried.append(rows)
        if 2 in rows:
            lose(scene, worker)
            scene.worker()
        else:
            for row in rows:
                end(scene, row)
    assert tried == [[0, 1, 2, 3, 4], [0, 1, 2], [0, 1], [2], [2], [3, 4]]
    assert scene.outcomes("Read") == [*["PRESENT"] * 2, "FAILED", *["PRESENT"] * 2]
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.cause.type, gap.cause.message, gap.cause.attempts) == ("WorkerDied", "killed", 2)


def test_other_workers_go_on_while_suspects_are_tried() -> None:
    scene = scene_of(30, replicas=2)
    lose(scene, 1)
    scene.worker()
    held = at_workers(scene)
    assert held == {2: [1, 3, 5, 7, 9], 3: [0, 2, 4]}
    end(scene, 1)
    end(scene, 0)
    assert at_workers(scene) == {2: [3, 5, 7, 9, 10], 3: [2, 4]}
    for row in (2, 4):
        end(scene, row)
    assert at_workers(scene)[3] == [6, 8]


def test_where_no_worker_comes_one_is_drained_for_the_suspects() -> None:
    """A worn worker's successor may be busy already when it dies."""
    scene = scene_of(30)
    scene.tell(WorkerWorn(1))
    scene.worker()
    lose(scene, 1)
    assert at_workers(scene) == {2: [5, 6, 7, 8, 9]}
    for row in (5, 6, 7, 8):
        end(scene, row)
    assert at_workers(scene) == {2: [9]}
    end(scene, 9)
    assert at_workers(scene) == {2: [0, 1, 2]}


def test_a_preempted_worker_makes_no_suspects() -> None:
    scene = scene_of(5, retry_budget=1)
    lose(scene, 1, charge=False)
    scene.worker()
    assert at_workers(scene) == {2: [0, 1, 2, 3, 4]}
    assert scene.scheduler.counts.retries == 5


def test_the_rows_of_a_barred_group_in_flight_are_dropped_and_the_rest_is_not_sent() -> None:
    scene = scene_of(9)
    end(scene, 1, SPOILED)
    assert not scene.scheduler.counts.calls[0].ready
    for row in (0, 2, 3, 4):
        end(scene, row)
    assert not scene.sent
    assert scene.scheduler.counts.dropped_rows == 4
    assert scene.outcome() == "FAILED"


@pytest.mark.parametrize("limit", ["row_limit_s", "batch_limit_s"])
def test_a_worker_that_does_not_answer_is_ended_and_its_rows_are_suspects(limit: str) -> None:
    scene = scene_of(4, retry_budget=1, **{limit: 2})
    order = scene.sent[1]
    told = scene.tell(DeadlinePassed(order.batch, order.worker))
    assert EndWorker(1) in told
    scene.sent = []
    scene.worker()
    assert at_workers(scene) == {2: [0, 1]}
    end(scene, 0)
    order = scene.take()
    scene.tell(DeadlinePassed(order.batch, order.worker))
    assert scene.outcomes("Read") == ["PRESENT", "FAILED", "PENDING", "PENDING"]


@pytest.mark.parametrize("row", [0, None])
def test_a_limit_that_is_not_there_cannot_be_passed(row: int | None) -> None:
    scene = scene_of(1)
    with pytest.raises(IllegalEvent, match="no such limit"):
        scene.tell(DeadlinePassed(scene.sent[0].batch, 1, row))
