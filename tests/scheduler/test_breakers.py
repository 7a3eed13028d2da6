"""A Call whose stage cannot reach its backend pauses, probes, and at last ends the run."""

from __future__ import annotations

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import (
    BatchReported,
    DispatchBatch,
    Instruction,
    PauseCall,
    ProbeDue,
    ResumeCall,
    StopRun,
    WorkerLost,
)
from rayorch_prefect.model.reports import AttemptFailed, RowFailure
from tests.scheduler.scenes import Scene, pages_read

PRESENT = "PRESENT"
REFUSED = "ConnectionError: refused"


def one_document(pages: int, **options: object) -> Scene:
    scene = Scene(pages_read("skip", batch_size=1, **options))
    scene.admit(1, [pages])
    return scene


def refuse(scene: Scene, **how: bool) -> tuple[DispatchBatch, list[Instruction]]:
    """The oldest batch cannot reach the backend."""
    order = scene.take()
    failed = AttemptFailed("ConnectionError", "refused", **(how or {"backend": True}))
    return order, scene.tell(BatchReported(order.batch, order.worker, failed))


def read(scene: Scene) -> int:
    return next(call.id for call in scene.plan.calls if call.stage == "Read")


def paused(told: list[Instruction]) -> list[PauseCall]:
    return [one for one in told if isinstance(one, PauseCall)]


def down() -> Scene:
    """A scene with a Call that has just been paused."""
    scene = one_document(7)
    told = [paused(refuse(scene)[1]) for _ in range(3)]
    assert told == [[], [], [PauseCall(read(scene), 0, REFUSED)]]
    return scene


def test_a_paused_call_gets_no_batch_until_a_probe_is_due() -> None:
    scene = down()
    while scene.sent:  # what waited at the worker
        assert not paused(refuse(scene)[1])
    (probe,) = scene.tell(ProbeDue(read(scene)))
    assert isinstance(probe, DispatchBatch)
    assert probe.rows == 1


def test_a_probe_that_fails_pauses_for_longer_and_one_that_is_answered_ends_the_pause() -> None:
    scene = down()
    while scene.sent:
        refuse(scene)
    scene.tell(ProbeDue(read(scene)))
    assert paused(refuse(scene)[1]) == [PauseCall(read(scene), 1, REFUSED)]
    assert not scene.sent
    scene.tell(ProbeDue(read(scene)))
    order = scene.take()
    told = scene.tell(BatchReported(order.batch, order.worker, scene.report(order)))
    assert ResumeCall(read(scene)) in told
    while scene.sent:
        scene.give()
    assert scene.outcomes("Read") == [PRESENT] * 7
    assert scene.parents[0, 0].attempts <= 3


def test_a_probe_that_is_lost_with_its_worker_goes_on_pausing() -> None:
    scene = down()
    while scene.sent:
        refuse(scene)
    scene.tell(ProbeDue(read(scene)))
    order = scene.take()
    lost = WorkerLost(order.worker, 0, "WorkerDied", "gone", charge=False)
    assert paused(scene.tell(lost)) == [PauseCall(read(scene), 0, REFUSED)]


def test_a_backend_that_stays_down_ends_the_run() -> None:
    scene = down()
    told = scene.tell(ProbeDue(read(scene), given_up=True))
    assert told == [StopRun(0, "Read", REFUSED, backend=True)]


def test_a_timer_that_rings_late_says_nothing() -> None:
    scene = one_document(2)
    assert not scene.tell(ProbeDue(read(scene), given_up=True))
    with pytest.raises(IllegalEvent, match="no Call 99"):
        scene.tell(ProbeDue(99))


def test_a_lone_row_whose_own_fault_looks_like_the_backends_is_spent() -> None:
    scene = one_document(1)
    for _ in range(3):
        assert not paused(refuse(scene)[1])
    assert scene.outcomes("Read") == ["FAILED"]


def test_other_exceptions_and_answers_in_between_pause_nothing() -> None:
    scene = one_document(6)
    for _ in range(3):
        for _ in range(2):
            assert not paused(refuse(scene)[1])
        scene.give()
    while scene.sent:
        scene.give()
    assert scene.outcomes("Read") == [PRESENT] * 6
    plain = one_document(7)
    for _ in range(7 * 3):
        assert not paused(refuse(plain, backend=False)[1])
    assert plain.outcomes("Read") == ["FAILED"] * 7


def test_without_patience_there_is_no_pause() -> None:
    scene = one_document(7, backend_patience_s=None)
    for _ in range(7 * 3):
        assert not paused(refuse(scene)[1])
    assert scene.outcomes("Read") == ["FAILED"] * 7


def test_one_report_of_many_rows_is_enough_and_charges_none_of_them() -> None:
    scene = Scene(pages_read("skip", batch_size=8, rowwise=True, retry_budget=1))
    scene.admit(1, [8])
    order = scene.take()
    refused = RowFailure(None, "ConnectionError", "refused", backend=True)
    report = scene.report(order, failures=dict.fromkeys(range(8), refused))
    told = scene.tell(BatchReported(order.batch, order.worker, report))
    assert paused(told) == [PauseCall(read(scene), 0, REFUSED)]
    scene.tell(ProbeDue(read(scene)))
    while scene.sent:
        scene.give()
    assert scene.outcomes("Read") == [PRESENT] * 8
