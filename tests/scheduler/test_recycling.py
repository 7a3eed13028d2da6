"""Workers that are worn: another takes their place, and no Grain notices."""

from __future__ import annotations

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import (
    BatchReported,
    DeadlinePassed,
    DispatchBatch,
    Instruction,
    RetireWorker,
    StartWorker,
    WorkerLost,
    WorkerWorn,
)
from tests.scheduler.scenes import Scene, pages_read


def workers(told: list[Instruction]) -> list[Instruction]:
    return [one for one in told if isinstance(one, StartWorker | RetireWorker)]


def sent_to(told: list[Instruction]) -> list[int]:
    return [one.worker for one in told if isinstance(one, DispatchBatch)]


def report(scene: Scene) -> list[Instruction]:
    order = scene.take()
    return scene.tell(BatchReported(order.batch, order.worker, scene.report(order)))


def test_the_next_worker_is_asked_for_with_the_last_batch_and_the_old_one_goes_after_it() -> None:
    scene = Scene(pages_read(batch_size=1, recycle_after_batches=2))
    (old,) = scene.scheduler.workers.pool_of
    scene.admit(1, [4])
    # Both batches of its life are sent at once; the others wait for the next worker.
    assert workers(scene.told) == [StartWorker(0)]
    assert [order.worker for order in scene.sent] == [old, old]
    assert workers(report(scene)) == []
    assert workers(report(scene)) == [RetireWorker(old)]
    assert not scene.sent
    new = scene.worker()
    assert sent_to(scene.told) == [new, new]
    report(scene)
    report(scene)
    assert scene.outcome() == "COMPLETED"
    assert scene.parents[0, 0].attempts == 1
    assert scene.scheduler.counts.workers_recycled == 2
    assert (scene.scheduler.counts.retries, scene.scheduler.counts.workers_lost) == (0, 0)


def test_the_next_worker_may_be_there_before_the_old_one_goes() -> None:
    scene = Scene(pages_read(batch_size=1, recycle_after_batches=2))
    scene.admit(1, [4])
    new = scene.worker()
    assert sent_to(scene.told) == [new, new]


def test_a_large_worker_does_what_it_holds_and_no_more() -> None:
    scene = Scene(pages_read(batch_size=1))
    (old,) = scene.scheduler.workers.pool_of
    scene.admit(1, [3])
    assert [order.worker for order in scene.sent] == [old, old]
    assert scene.tell(WorkerWorn(old)) == [StartWorker(0)]
    assert scene.tell(WorkerWorn(old)) == []
    assert sent_to(report(scene)) == []
    assert workers(report(scene)) == [RetireWorker(old)]
    assert sent_to(scene.tell(WorkerWorn(old))) == []
    scene.worker()
    report(scene)
    assert scene.outcome() == "COMPLETED"


def test_a_large_idle_worker_goes_at_once() -> None:
    scene = Scene(pages_read())
    (old,) = scene.scheduler.workers.pool_of
    assert scene.tell(WorkerWorn(old)) == [StartWorker(0), RetireWorker(old)]


@pytest.mark.parametrize("how", ["death", "deadline"])
def test_a_worn_worker_that_ends_early_is_not_replaced_twice(how: str) -> None:
    scene = Scene(pages_read(batch_size=1, recycle_after_batches=1, batch_limit_s=5))
    scene.admit(1, [1])
    order = scene.take()
    if how == "death":
        told = scene.tell(WorkerLost(order.worker, 0, "WorkerDied", "gone"))
    else:
        told = scene.tell(DeadlinePassed(order.batch, order.worker))
    assert workers(told) == []
    scene.worker()
    report(scene)
    assert scene.outcome() == "COMPLETED"


def test_an_unknown_worker_cannot_be_worn() -> None:
    scene = Scene(pages_read())
    with pytest.raises(IllegalEvent, match="worker 99 is not known"):
        scene.tell(WorkerWorn(99))


def test_a_worker_at_work_does_not_hide_that_others_cannot_start() -> None:
    """Three deaths in a row before the first start end the run, whatever an old worker does."""
    scene = Scene(pages_read(batch_size=1, replicas=2), workers=False)
    scene.worker()
    scene.admit(1, [9])
    for attempt in range(3):
        assert scene.scheduler.stopped is None
        report(scene)
        scene.tell(WorkerLost(100 + attempt, 0, "ValueError", "ValueError: no model"))
    assert scene.scheduler.stopped is not None
    assert scene.scheduler.stopped.message == "ValueError: no model"
