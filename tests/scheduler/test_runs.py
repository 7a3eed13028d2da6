"""Scenes of whole runs: microbatches, values, dispatch, and events that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import (
    BatchReported,
    DispatchBatch,
    MicrobatchAbandoned,
    MicrobatchClosed,
    RowsReleased,
    SourceAdmitted,
    StopRun,
    WorkerLost,
    WorkerReady,
    WorkerRemakes,
)
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.model.reports import ContractBreach, OutputReport
from rayorch_prefect.program import F
from rayorch_prefect.scheduler.core import Scheduler
from tests.scheduler.scenes import ENCRYPTED, Scene, named, pages_read
from tests.scheduler.snapshots import snapshot

# -- source rows --------------------------------------------------------------------------------


def test_a_source_row_that_does_not_fit_the_program_fails_alone() -> None:
    scene = Scene(pages_read())
    source = OutputReport(0, 2, (1, 0, 1))
    scene.tell(SourceAdmitted(0, 3, source, ((1, "a text"),)))
    assert scene.outcome(1) == "FAILED"
    scene.give()
    assert [scene.outcome(row) for row in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]


def test_a_source_row_that_does_not_fit_leaves_nothing_behind() -> None:
    scene = Scene(lambda source: F.filter(named("Read")(source), source))
    source = OutputReport(0, 2, None, b"\x01\x00")
    scene.tell(SourceAdmitted(0, 2, source, ((1, "a text"),)))
    assert scene.outcome(1) == "FAILED"
    assert scene.released == {1}


# -- workers ------------------------------------------------------------------------------------


def test_f3_three_workers_in_a_row_that_die_before_their_first_start_end_the_run() -> None:
    scene = Scene(pages_read(), workers=False)
    scene.tell(WorkerLost(1, 0, "RayActorError", "no such module"))
    scene.tell(WorkerReady(2, 0))
    scene.tell(WorkerLost(2, 0, "RayActorError", "no such module"))
    (stop,) = scene.tell(WorkerLost(3, 0, "RayActorError", "no such module"))
    assert stop == StopRun(0, "Read", "no such module")
    assert scene.tell(WorkerReady(4, 0)) == []


def test_f3_a_start_ends_the_row_of_failed_starts() -> None:
    scene = Scene(pages_read(replicas=2), workers=False)
    scene.admit(1, [1])
    scene.tell(WorkerLost(1, 0, "RayActorError", ""))
    scene.tell(WorkerLost(2, 0, "RayActorError", ""))
    scene.tell(WorkerReady(3, 0))
    assert scene.ranges() == [((0, 1),)]
    scene.tell(WorkerLost(4, 0, "RayActorError", ""))
    assert scene.scheduler.stopped is None


def test_f3_workers_that_die_with_one_node_before_their_first_start_count_once() -> None:
    scene = Scene(pages_read(replicas=4), workers=False)
    for worker in range(1, 5):
        scene.tell(WorkerLost(worker, 0, "WorkerDied", "", node="n1"))
    scene.tell(WorkerLost(5, 0, "WorkerDied", "", node="n2"))
    assert scene.scheduler.stopped is None
    scene.tell(WorkerLost(6, 0, "WorkerDied", "gone", node="n3"))
    assert scene.scheduler.stopped == StopRun(0, "Read", "gone")


def test_f3_a_start_forgets_the_nodes_of_failed_starts() -> None:
    scene = Scene(pages_read(replicas=2), workers=False)
    scene.admit(1, [1])
    scene.tell(WorkerLost(1, 0, "WorkerDied", "", node="n1"))
    scene.tell(WorkerReady(2, 0))
    assert scene.ranges() == [((0, 1),)]
    for worker, node in ((3, "n1"), (4, "n2"), (5, "n3")):
        assert scene.scheduler.stopped is None
        scene.tell(WorkerLost(worker, 0, "WorkerDied", "", node=node))
    assert scene.scheduler.stopped is not None


def test_f3_a_worker_that_makes_lost_values_again_has_started() -> None:
    scene = Scene(pages_read(replicas=2), workers=False)
    for worker in range(1, 6):
        scene.tell(WorkerReady(worker, 0))
        assert scene.tell(WorkerRemakes(worker)) == []
        scene.tell(WorkerLost(worker, 0, "WorkerDied", ""))
        scene.tell(WorkerRemakes(worker))
    assert scene.scheduler.stopped is None


# -- several microbatches ------------------------------------------------------------------------


def test_batches_mix_parents_and_microbatches_but_lists_do_not() -> None:
    scene = Scene(pages_read(batch_size=8), workers=False)
    scene.admit(2, [1, 2])
    scene.admit(1, [2])
    scene.worker()
    assert [order.ranges for order in scene.sent] == [((0, 0, 3), (1, 0, 2))]
    assert scene.sent[0].cuts == (1, 3)
    scene.give()
    assert scene.output(0, 0) == ("M", (("R", 5, 1),), None, ())
    assert scene.output(1, 0) == ("M", (("R", 6, 2),), None, ())
    assert scene.output(0, 1) == ("M", (("R", 8, 2),), None, ())


def test_a_microbatch_is_closed_with_its_last_row() -> None:
    scene = Scene(lambda source: named("Read")(source))
    scene.admit(2)
    scene.give()
    scene.tell(RowsReleased(0, (1,)))
    assert scene.released == {0, 1, 3}
    assert scene.tell(RowsReleased(0, (0, 1)))[-1] == MicrobatchClosed(0)
    assert scene.released == {0, 1, 2, 3}
    assert scene.tell(RowsReleased(0, (0,))) == []


# -- values --------------------------------------------------------------------------------------


def test_a_value_goes_with_its_last_reader() -> None:
    def chain(source: Any) -> Any:
        first = named("First", batch_size=1)(source)
        return named("Second", batch_size=1)(first)

    scene = Scene(chain)
    scene.admit(2)
    scene.give("First")
    assert scene.released == {0}
    scene.give("Second")
    assert scene.released == {0, 2}


def test_a_value_that_siblings_see_through_a_reduce_stays_for_them() -> None:
    """Each page reads the list of all pages."""

    def together(source: Any) -> Any:
        page = F.expand(source, domain="page")
        read = named("Read")(page)
        every = F.broadcast(F.reduce(read), like=page)
        return F.reduce(named("Compare", batch_size=1)(read, every))

    scene = Scene(together)
    scene.admit(1, [2])
    scene.give("Read")
    scene.give("Compare")
    assert not scene.released & {2, 3}
    scene.give("Compare")
    assert {2, 3} <= scene.released


def test_a_list_stays_while_its_elements_are_looked_at_as_masks() -> None:
    """Nothing but a filter reads the list, and the filter's other input comes later."""

    def masked(source: Any) -> Any:
        made = named("Split", outputs=2)(source)
        page, mask = F.expand_aligned(*made, domain="page")
        return F.reduce(F.filter(named("Read")(page), mask))

    scene = Scene(masked)
    scene.admit()
    scene.give("Split", shapes=[2], masks=[True, False])
    scene.give("Read")
    assert scene.output() == ("M", (("R", 5, 1),), (0,), ())


# -- what cannot be ------------------------------------------------------------------------------


def _waiting_scene() -> Scene:
    """A batch of Read is at worker 1; the worker of Check is not there yet."""

    def pages(source: Any) -> Any:
        read = named("Read", batch_size=2)(F.expand(source, domain="page"))
        return F.reduce(read), named("Check")(source)

    scene = Scene(pages, workers=False)
    scene.admit(2, [2, 1])
    scene.worker()
    scene.give()
    return scene


@pytest.mark.parametrize(
    "impossible",
    [
        lambda scene: BatchReported(99, 1, ContractBreach("", "")),
        lambda scene: BatchReported(scene.sent[0].batch, 99, ContractBreach("", "")),
        lambda scene: WorkerReady(1, 0),
        lambda scene: WorkerReady(7, 0),
        lambda scene: WorkerReady(7, 5),
        lambda scene: WorkerLost(7, 0, "", ""),
        lambda scene: WorkerLost(1, 1, "", ""),
        lambda scene: SourceAdmitted(0, 1, OutputReport(50, 1, (1,))),
        lambda scene: SourceAdmitted(1, 0, OutputReport(50, 0, ())),
        lambda scene: SourceAdmitted(1, 1, OutputReport(50, 1, None)),
        lambda scene: SourceAdmitted(1, 2, OutputReport(50, 1, (1,))),
        lambda scene: RowsReleased(5, (0,)),
        lambda scene: RowsReleased(0, (0, 1)),
        lambda scene: RowsReleased(0, (7,)),
        lambda scene: RowsReleased(0, (-1,)),
        lambda scene: MicrobatchAbandoned(5),
    ],
)
def test_an_impossible_event_is_refused_and_changes_nothing(impossible: Any) -> None:
    scene = _waiting_scene()
    before = snapshot(scene.scheduler)
    with pytest.raises(IllegalEvent):
        scene.scheduler.handle(impossible(scene))
    assert snapshot(scene.scheduler) == before
    scene.worker(1)
    scene.give("Read")
    scene.give("Check")
    assert scene.outcome(1) == "COMPLETED"


def test_a_refused_report_tells_the_story_of_its_batch() -> None:
    scene = _waiting_scene()
    order = scene.sent[0]
    with pytest.raises(IllegalEvent, match=f"batch {order.batch} to worker 1: in flight"):
        scene.scheduler.handle(BatchReported(order.batch, 99, ContractBreach("", "")))


def test_a_run_is_replayed_from_its_events() -> None:
    scene = Scene(pages_read("skip", batch_size=2, retry_budget=2))
    scene.admit(2, [3, 2])
    scene.fail()
    scene.give()
    scene.give(failures={0: ENCRYPTED})
    scene.lose()
    while scene.sent:
        scene.give()
    scene.tell(RowsReleased(0, (0, 1)))
    twins = [Scheduler(scene.plan) for _ in range(2)]
    for twin in twins:
        twin.start()
    for event in scene.events:
        assert twins[0].handle(event) == twins[1].handle(event)
    assert snapshot(twins[0]) == snapshot(scene.scheduler)


def test_outcomes_are_the_layout() -> None:
    assert [one.name for one in Outcome] == [
        "PENDING",
        "PRESENT",
        "DROPPED",
        "FAILED",
        "SUPPRESSED",
    ]


def test_dispatch_is_fifo_and_nearest_to_the_output_first() -> None:
    shared = named("Shared", batch_size=2)
    scene = Scene(lambda source: shared(shared(source)))
    scene.admit(3)
    order = scene.give()
    assert isinstance(order, DispatchBatch)
    assert [(one.call, one.ranges) for one in scene.sent] == [(1, ((0, 0, 2),))]
