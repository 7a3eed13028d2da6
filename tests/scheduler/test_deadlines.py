"""Rules 3 and 4 of failures: a passed deadline ends its worker and is an attempt that failed."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import BatchReported, DeadlinePassed, EndWorker, StartWorker
from rayorch_prefect.model.outcomes import Kind
from tests.scheduler.scenes import SPOILED, Scene, pages_read

PRESENT, FAILED, SUPPRESSED = "PRESENT", "FAILED", "SUPPRESSED"


def read_row_by_row(**options: Any) -> Scene:
    chosen: dict[str, Any] = {"rowwise": True, "row_limit_s": 3, "retry_budget": 2, **options}
    return Scene(pages_read("skip", **chosen))


def test_the_row_at_the_limit_is_tried_alone_next_and_the_rest_is_not_charged() -> None:
    scene = read_row_by_row()
    scene.admit(1, [4])
    order = scene.take()
    told = scene.tell(DeadlinePassed(order.batch, order.worker, 2))
    assert told == [EndWorker(order.worker), StartWorker(0)]
    scene.worker()
    assert scene.ranges() == [((2, 3),), ((0, 2), (3, 4))] or scene.ranges() == [((2, 3),)]
    assert scene.sent[0].generation == 1
    scene.pass_deadline(row=0)
    scene.give()
    assert scene.outcomes("Read") == [PRESENT, PRESENT, FAILED, PRESENT]
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.cause.kind, gap.cause.type, gap.cause.attempts, gap.cause.message) == (
        Kind.ATTEMPTS_EXHAUSTED,
        "DeadlineExceeded",
        2,
        "stage Read was ended past row_limit_s=3",
    )


def test_neighbours_of_a_slow_row_have_their_whole_budget_left() -> None:
    scene = read_row_by_row(retry_budget=1)
    scene.admit(1, [3])
    scene.pass_deadline(row=0)
    scene.pass_deadline(row=0)
    scene.give()
    assert scene.outcomes("Read") == [FAILED, FAILED, PRESENT]


def test_a_batch_at_its_limit_is_halved_until_the_culprit_stands_alone() -> None:
    scene = Scene(pages_read("skip", batch_size=4, batch_limit_s=1.5, retry_budget=2))
    scene.admit(1, [4])
    tried: list[tuple[tuple[int, int], ...]] = []
    while scene.sent:
        ranges = scene.ranges()[0]
        tried.append(ranges)
        culprit = any(first <= 2 < end for first, end in ranges)
        (scene.pass_deadline if culprit else scene.give)()
    assert tried == [((0, 4),), ((0, 2),), ((2, 4),), ((2, 3),), ((2, 3),), ((3, 4),)]
    assert scene.outcomes("Read") == [PRESENT, PRESENT, FAILED, PRESENT]
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.cause.type, gap.cause.message) == (
        "DeadlineExceeded",
        "stage Read was ended past batch_limit_s=1.5",
    )


def test_the_batch_that_waits_behind_a_slow_one_is_not_charged() -> None:
    scene = read_row_by_row(batch_size=1, retry_budget=1)
    scene.admit(1, [2])
    slow, waiting = scene.take(), scene.take()
    assert slow.worker == waiting.worker
    scene.tell(DeadlinePassed(slow.batch, slow.worker, 0))
    scene.worker()
    scene.give()
    assert scene.outcomes("Read") == [FAILED, PRESENT]


def test_the_report_of_an_ended_worker_is_fenced() -> None:
    scene = read_row_by_row()
    scene.admit(1, [2])
    order = scene.pass_deadline(row=1)
    late = scene.report(order)
    scene.tell(BatchReported(order.batch, order.worker, late))
    assert scene.scheduler.counts.stale_reports == 1
    assert scene.outcomes("Read") == ["PENDING", "PENDING"]


def test_a_deadline_of_a_batch_that_has_ended_changes_nothing() -> None:
    scene = read_row_by_row()
    scene.admit(1, [9])
    done = scene.give()
    assert scene.tell(DeadlinePassed(done.batch, done.worker, 0)) == []
    scene.give()
    assert scene.outcomes("Read") == [PRESENT] * 9


def test_a_slow_row_that_was_barred_meanwhile_is_not_tried_again() -> None:
    scene = read_row_by_row(batch_size=1, replicas=2)
    scene.admit(1, [2])
    spoiled, slow = scene.take(), scene.take()
    report = scene.report(spoiled, failures={0: SPOILED})
    scene.tell(BatchReported(spoiled.batch, spoiled.worker, report))
    told = scene.tell(DeadlinePassed(slow.batch, slow.worker, 0))
    assert EndWorker(slow.worker) in told
    assert not scene.sent
    assert scene.outcomes("Read") == [FAILED, SUPPRESSED]


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_the_batch_does_not_have_cannot_be_at_its_limit(row: int) -> None:
    scene = read_row_by_row()
    scene.admit(1, [4])
    order = scene.take()
    with pytest.raises(IllegalEvent, match="no such limit of stage Read"):
        scene.tell(DeadlinePassed(order.batch, order.worker, row))


def test_a_stage_without_limits_has_no_deadline() -> None:
    scene = Scene(pages_read())
    scene.admit(1, [4])
    order = scene.take()
    with pytest.raises(IllegalEvent, match="no such limit of stage Read"):
        scene.tell(DeadlinePassed(order.batch, order.worker, None))
