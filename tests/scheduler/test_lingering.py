"""Calls that wait a little with a part-filled batch: only while more can come."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import LingerCall, LingerPassed, WorkerLost
from rayorch_prefect.program import F
from tests.scheduler.scenes import Scene, named


def rendered_and_read(**options: Any) -> Any:
    """Rows become pages, one row at a time; pages are read in batches of 4, or after a while."""

    def pages(source: Any) -> Any:
        page = F.expand(named("Render", batch_size=1)(source), domain="page")
        return F.reduce(named("Read", **{"batch_size": 4, "linger_s": 0.5, **options})(page))

    return pages


def lingers(scene: Scene) -> list[LingerCall]:
    return [one for one in scene.told if isinstance(one, LingerCall)]


def test_a_part_filled_batch_waits_for_what_may_come() -> None:
    scene = Scene(rendered_and_read())
    scene.admit(3)
    scene.give("Render", shapes=[3])
    assert not scene.ranges("Read")
    assert lingers(scene) == [LingerCall(1, 1)]
    scene.give("Render", shapes=[2])
    # Full; the fifth page waits anew, but only for as long as something may come.
    assert scene.ranges("Read") == [((0, 4),)]
    scene.give("Read")
    assert lingers(scene) == [LingerCall(1, 2)]
    scene.give("Render", shapes=[0])
    assert scene.ranges("Read") == [((4, 5),)]


def test_a_part_filled_batch_goes_when_it_has_waited_long_enough() -> None:
    scene = Scene(rendered_and_read())
    scene.admit(3)
    scene.give("Render", shapes=[3])
    scene.tell(LingerPassed(1, 1))
    assert scene.ranges("Read") == [((0, 3),)]
    scene.give("Read")
    scene.give("Render", shapes=[1])
    assert not scene.ranges("Read")
    # The end of the first wait, told late, does not end the second.
    scene.tell(LingerPassed(1, 1))
    assert not scene.ranges("Read")
    scene.tell(LingerPassed(1, 2))
    assert scene.ranges("Read") == [((3, 4),)]


def test_a_closed_batch_does_not_wait() -> None:
    scene = Scene(rendered_and_read())
    scene.admit(9)
    scene.give("Render", shapes=[4])
    scene.fail("Read")
    assert scene.ranges("Read") == [((0, 2),)]


def test_rows_that_cannot_become_more_do_not_wait() -> None:
    scene = Scene(rendered_and_read())
    scene.admit(1)
    scene.give("Render", shapes=[3])
    assert scene.ranges("Read") == [((0, 3),)]
    assert not lingers(scene)


def test_pages_that_read_a_broadcast_alone_wait_for_pages() -> None:
    def shown(source: Any) -> Any:
        page = F.expand(named("Render", batch_size=1)(source), domain="page")
        whole = F.broadcast(source, like=page)
        return F.reduce(named("Read", batch_size=4, linger_s=0.5)(whole))

    scene = Scene(shown)
    scene.admit(2)
    scene.give("Render", shapes=[3])
    assert not scene.ranges("Read")


def test_a_worker_that_is_lost_meanwhile_changes_nothing() -> None:
    scene = Scene(rendered_and_read())
    scene.admit(2)
    scene.give("Render", shapes=[3])
    (pool,) = [pool.id for pool in scene.plan.pools if pool.stage == "Read"]
    (worker,) = scene.scheduler.workers.idle[pool]
    scene.tell(WorkerLost(worker, pool, "WorkerDied", "idle"))
    scene.worker(pool)
    assert not lingers(scene)
    scene.tell(LingerPassed(1, 1))
    assert scene.ranges("Read") == [((0, 3),)]


@pytest.mark.parametrize(("call", "turn"), [(7, 1), (-1, 1), (1, 1), (1, 0)])
def test_a_wait_that_nobody_asked_for_cannot_end(call: int, turn: int) -> None:
    scene = Scene(rendered_and_read())
    with pytest.raises(IllegalEvent, match="did not ask"):
        scene.tell(LingerPassed(call, turn))
