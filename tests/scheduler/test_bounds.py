"""Back-pressure by hand: what goes, what waits, and what passes all the same."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.core.runs import Instant
from rayorch_prefect.model.events import BatchReported, DispatchBatch, RowsReleased
from rayorch_prefect.model.reports import OutputReport, RowsReport
from rayorch_prefect.program import F, program
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.credits import MIB, Bound
from tests.scheduler import bounds
from tests.scheduler.recipes import Recipe, Step, Weights, build
from tests.scheduler.scenes import Scene, named
from tests.scheduler.test_state_machine import simulate


def bounded(declared: Any, bound: Bound) -> Scene:
    """A Scene whose Scheduler has a bound; its workers are ready."""
    scene = Scene(declared, workers=False)
    scene.scheduler = Scheduler(scene.plan, bound=bound)
    for one in scene.scheduler.start():
        scene.worker(one.pool)  # type: ignore[union-attr]
    return scene


def made(scene: Scene, order: DispatchBatch, *sizes: int) -> None:
    """A batch comes back with values of these bytes, each a chunk of its own."""
    slot = scene._slot
    scene._slot += order.rows
    chunks = tuple((1, size, False) for size in sizes)
    output = OutputReport(slot, order.rows, None, None, chunks)
    scene.tell(BatchReported(order.batch, order.worker, RowsReport(order.rows, (output,))))


def two_steps(first: Any, second: Any) -> Any:
    def pages(page: Any) -> Any:
        return second(first(page))

    return pages


def pages_read(render: Any, read: Any) -> Any:
    """Pages are rendered and read; the texts of a document are its output."""

    def documents(pages: Any) -> Any:
        return F.reduce(read(render(F.expand(pages, domain="page"))))

    return documents


def test_a_stage_waits_until_its_values_have_been_read() -> None:
    render = named("Render", batch_size=2, replicas=4, max_pending=4)
    scene = Scene(pages_read(render, named("Read", batch_size=2)))
    scene.admit(1, [10])
    assert [order.rows for order in scene.sent] == [2, 2]
    scene.give("Render")
    assert scene.ranges("Render") == [((2, 4),)], "two are made and two in the making"
    scene.give("Read")
    assert scene.ranges("Render") == [((2, 4),), ((4, 6),)]


def test_bytes_bound_all_stages_together() -> None:
    """What a Grain makes is estimated by earlier ones, at first by a guess."""
    steps = pages_read(named("Render", batch_size=1, replicas=5), named("Read", batch_size=1))
    scene = bounded(steps, Bound(bytes=80 * MIB))
    scene.admit(1, [30])
    assert len(scene.sent) == 5
    for _ in range(5):
        made(scene, scene.take("Render"), 25 * MIB)
    assert not scene.ranges("Render")
    for _ in range(2):
        made(scene, scene.take("Read"), 10)
        assert not scene.ranges("Render"), "75 MiB and a few bytes: no room for 25 more"
    made(scene, scene.take("Read"), 10)
    assert len(scene.ranges("Render")) == 1


def test_a_guess_keeps_no_worker_idle() -> None:
    render = named("Render", batch_size=16, replicas=64)
    scene = bounded(pages_read(render, named("Read", batch_size=16)), Bound(bytes=1000 * MIB))
    scene.admit(1, [5000])
    assert len({order.worker for order in scene.sent}) == 64
    assert {order.rows for order in scene.sent} == {16}


def test_before_a_size_is_known_nothing_waits_at_workers() -> None:
    """A first round of large values must not be two."""
    render = named("Render", batch_size=8, replicas=4)
    scene = bounded(pages_read(render, named("Read", batch_size=8)), Bound(bytes=600 * MIB))
    scene.admit(1, [200])
    assert sorted(order.worker for order in scene.sent) == [1, 2, 3, 4]
    made(scene, scene.take("Render"), *[1000] * 8)
    assert len(scene.ranges("Render")) == 3 + 5, "now that they are small, two at each"


def test_what_is_nearer_to_completion_has_room_kept_for_it() -> None:
    scene = bounded(
        pages_read(named("Render", batch_size=1, replicas=4), named("Read", batch_size=1)),
        Bound(bytes=1000),
    )
    scene.admit(1, [100])
    for _ in range(3):  # Read makes 100 bytes of 100
        made(scene, scene.take("Render"), 100)
    made(scene, scene.take("Read"), 100)
    while scene.ranges("Render"):
        made(scene, scene.take("Render"), 100)
        assert scene.ranges("Read"), "the room left for it is there"


def test_a_whole_batch_or_none_while_others_are_in_flight() -> None:
    render = named("Render", batch_size=3, replicas=4, max_pending=8)
    scene = Scene(pages_read(render, named("Read", batch_size=3)))
    scene.admit(1, [30])
    assert [order.rows for order in scene.sent] == [3, 3], "two would fit, but wait for a third"


def test_a_parent_larger_than_the_bound_passes_in_ever_larger_steps() -> None:
    render = named("Render", batch_size=2, replicas=4)
    scene = bounded(pages_read_whole(render), Bound(values=3))
    scene.admit(1, [40])
    steps = []
    while scene.ranges("Render"):
        sent = len(scene.ranges("Render"))
        steps.append(sum(order.rows for order in scene.sent))
        for _ in range(sent):
            scene.give("Render")
    assert steps == [3, 1, 2, 4, 8, 8, 8, 6], "4 workers take 8 at most"
    scene.give("Bind")
    assert scene.outcome() == "COMPLETED"


def pages_read_whole(render: Any) -> Any:
    """All rendered pages of a document are needed at once."""

    def documents(pages: Any) -> Any:
        return named("Bind", batch_size=1)(F.reduce(render(F.expand(pages, domain="page"))))

    return documents


def test_the_oldest_parent_goes_past_a_bound_alone() -> None:
    scene = bounded(pages_read_whole(named("Render", batch_size=8)), Bound(values=1))
    scene.admit(2, [6, 6])
    for pages in ((0, 1), (1, 2), (2, 4), (4, 6)):
        assert scene.ranges() == [(pages,)]
        scene.give("Render")
    scene.give("Bind")
    assert scene.outcome() == "COMPLETED"
    assert not scene.sent, "its output is pending until it is taken over"
    scene.tell(RowsReleased(0, (0,)))
    assert scene.ranges() == [((6, 7),)]


def test_a_finished_parent_that_is_not_taken_over_yet_is_waited_for() -> None:
    """Its values are about to go: nothing passes the bound meanwhile."""
    scene = bounded(two_steps(named("One", batch_size=1), named("Two", batch_size=1)), Bound(2))
    scene.admit(4)
    for _ in range(4):
        if scene.sent:
            scene.give()
    assert scene.outcome(0) == "COMPLETED"
    while scene.sent:
        scene.give()
    held = sum(scene.scheduler.credits.values.held)
    assert held <= 2
    rows = tuple(row for row in range(4) if scene.outcome(row))
    scene.tell(RowsReleased(0, rows))
    assert scene.sent


def test_a_chunk_counts_until_its_last_value_is_read() -> None:
    scene = bounded(pages_read(named("Render"), named("Read", batch_size=1)), Bound(bytes=1 << 40))
    scene.admit(1, [4])
    order = scene.take("Render")
    output = OutputReport(scene._slot, 4, None, None, ((4, 1000, False),))
    scene._slot += 4
    scene.tell(BatchReported(order.batch, order.worker, RowsReport(4, (output,))))
    for left in (1000, 1000, 1000, 0):
        scene.give("Read")
        assert sum(scene.scheduler.credits.bytes.held) == left


@pytest.mark.parametrize("seed", range(3))
def test_bounds_are_drawn(seed: int) -> None:
    drawn = {bounds.some_bound(100 * seed + one) for one in range(100)}
    assert Bound() in drawn
    assert len(drawn) > 8


def test_nothing_is_pending_after_many_batches() -> None:
    """There are so many that the first are forgotten in between."""
    steps = pages_read(named("Render", batch_size=1), named("Read", batch_size=1))
    run = Instant(program(steps).plan, [1500])
    assert run.run() == 1
    assert run.scheduler.credits.values.held == [0, 0]


def test_what_is_left_when_a_grain_went_past_the_bound_lingers_at_once() -> None:
    """Its wait began with the next event, whatever that was: also one that came too late."""
    steps = (Step(11, 0, 0, 4), Step(15, 0, 0, 5), Step(0, 0, 0, 0), Step(0, 0, 0, 4))
    weights = Weights(record=0, group=0, flaky=0, exhausted=0, most_children=1)
    recipe = Recipe(steps, (0,), weights, seed=41252, chaos=2, microbatches=(1, 1, 1))
    plan = build(recipe)
    assert plan is not None
    simulate(plan, recipe)
