"""Doomed work, each rule in a scene; that it changes no outcome is the state machine's."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.model.events import BatchTakenBack, TakeBack, TellBars
from rayorch_prefect.program import F
from tests.scheduler.scenes import ENCRYPTED, SPOILED, Scene, named


def read_and_checked(on_failure: str = "fail", **options: Any) -> Any:
    def pages(source: Any) -> Any:
        text = named("Read", **{"batch_size": 1, **options})(F.expand(source, domain="page"))
        return F.reduce(named("Check", batch_size=1)(text), on_failure=on_failure)

    return pages


def doomed(scene: Scene) -> dict[str, int]:
    counts = scene.scheduler.counts.calls
    return {call.stage: counts[call.id].doomed for call in scene.plan.calls}


def test_a_failure_stops_its_parent_in_every_call_and_nobody_else() -> None:
    scene = Scene(read_and_checked())
    scene.admit(2, shapes=[4, 1])
    scene.give("Read")
    scene.give("Read")
    assert scene.outcomes("Check") == ["PENDING"] * 5
    scene.give("Read", failures={0: ENCRYPTED})
    assert scene.outcome(0) == "FAILED"
    assert scene.cause(0) == ("Read", "Encrypted", (2,))
    # Page 2 itself failed, and its Check is suppressed by what it reads.
    assert doomed(scene) == {"Read": 1, "Check": 3}
    assert [call.suppressed for call in scene.scheduler.counts.calls] == [1, 4]
    assert not scene.outcome(1)


def test_a_failure_that_is_forgiven_stops_nothing() -> None:
    scene = Scene(read_and_checked("skip"))
    scene.admit(1, shapes=[4])
    scene.give("Read", failures={0: ENCRYPTED})
    assert doomed(scene) == {"Read": 0, "Check": 0}
    assert scene.ranges("Read") == [((1, 2),), ((2, 3),)]


def test_a_group_failure_is_not_forgiven_and_stops_later_calls() -> None:
    scene = Scene(read_and_checked("skip"))
    scene.admit(1, shapes=[4])
    scene.give("Read")
    scene.give("Read", failures={0: SPOILED})
    assert scene.outcome() == "FAILED"
    # Pages 1 to 3 were barred at Read, so that their Checks have no input.
    assert doomed(scene) == {"Read": 0, "Check": 1}


def test_a_broadcast_dooms_only_who_sees_it() -> None:
    def headed(source: Any) -> Any:
        page = F.expand(named("Render", batch_size=1)(source), domain="page")
        head = named("Head", batch_size=1)(source)
        return F.reduce(named("Read", batch_size=1)(page, F.broadcast(head, like=page)))

    scene = Scene(headed)
    scene.admit(2)
    scene.give("Head", failures={0: ENCRYPTED})
    scene.give("Render", shapes=[0])
    assert scene.outcome(0) == "COMPLETED"
    scene.give("Render", shapes=[2])
    scene.give("Head", failures={0: ENCRYPTED})
    assert scene.outcome(1) == "FAILED"


def test_what_would_become_ready_later_is_suppressed_too() -> None:
    def late(source: Any) -> Any:
        one, other = named("One")(source), named("Other")(source)
        page = F.expand(F.coalesce(one, other), domain="page")
        return F.reduce(named("Read")(page)), named("Beside")(source)

    scene = Scene(late)
    scene.admit()
    scene.give("One", shapes=[3])
    # Other is in flight: its end lets the pages of One come to be.
    scene.give("Beside", failures={0: ENCRYPTED})
    assert scene.outcome() == "FAILED"
    assert scene.outcomes("Read") == ["SUPPRESSED"] * 3
    assert doomed(scene)["Read"] == 3
    assert not scene.ranges("Read")


def test_workers_are_told_which_rows_they_need_not_start() -> None:
    scene = Scene(read_and_checked(batch_size=2, replicas=2))
    scene.admit(1, shapes=[6])
    reads = [order.worker for order in scene.sent]
    scene.give("Read")
    scene.give("Read", failures={0: ENCRYPTED})
    told = {one.worker: one.bars for one in scene.told if isinstance(one, TellBars)}
    assert told == {reads[2]: ((0, 0, 0),), scene.take("Check").worker: ((0, 1, 0),)}


def test_a_batch_that_waits_for_nobody_is_taken_back() -> None:
    def two(source: Any) -> Any:
        return named("One", batch_size=1)(source), named("Other", batch_size=1)(source)

    scene = Scene(two)
    scene.admit(2)
    scene.give("One")
    scene.give("One", failures={0: ENCRYPTED})
    (asked,) = (one for one in scene.told if isinstance(one, TakeBack))
    first, waits = (order for order in scene.sent)
    assert (asked.batch, asked.worker) == (waits.batch, waits.worker)
    scene.tell(BatchTakenBack(waits.batch, waits.worker))
    assert scene.scheduler.counts.calls[first.call].ready == 0


def test_rows_that_were_under_way_are_dropped_and_counted() -> None:
    scene = Scene(read_and_checked(replicas=2))
    scene.admit(1, shapes=[2])
    scene.give("Read", failures={0: ENCRYPTED})
    assert scene.outcome() == "FAILED"
    scene.give("Read")
    assert scene.scheduler.counts.dropped_rows == 1
    assert scene.scheduler.counts.calls[0].in_flight == 0
