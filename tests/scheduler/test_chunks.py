"""Scenes of expansions that arrive in chunks (semantics, Failure 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import ChildrenArrived, DispatchBatch
from rayorch_prefect.program import F, stage
from rayorch_prefect.scheduler.core import Scheduler
from tests.scheduler.scenes import ENCRYPTED, SPOILED, Scene, named
from tests.scheduler.snapshots import snapshot


def cut(video: object) -> Iterator[object]:
    raise AssertionError(f"only simulated, {video}")
    yield


def clips(on_failure: str = "fail", batch_size: int = 1, **options: Any) -> Any:
    """Each video is cut into clips, one by one; Read reads each."""

    def videos(source: Any) -> Any:
        clip = F.expand(stage(cut, batch_size=batch_size, **options)(source), domain="clip")
        return F.reduce(named("Read", batch_size=4)(clip), on_failure=on_failure)

    return videos


def arrive(scene: Scene, order: DispatchBatch, n: int, *, first: int, row: int = 0) -> None:
    """n children of a row of `cut` arrive, from ordinal `first` on."""
    outputs = (scene._output(1, (n,), None),)
    scene.tell(ChildrenArrived(order.batch, order.worker, row, first, outputs))


def only(scene: Scene, name: str) -> DispatchBatch:
    (order,) = [one for one in scene.sent if scene.plan.calls[one.call].stage == name]
    return order


def test_a_clip_is_read_before_the_last_one_is_cut() -> None:
    scene = Scene(clips())
    scene.admit()
    order = only(scene, "cut")
    arrive(scene, order, 2, first=0)
    scene.give("Read")
    assert scene.outcomes("Read") == ["PRESENT"] * 2
    assert not scene.outcome(), "the member set is open"
    scene.give("cut", shapes=[1])
    assert not scene.outcome(), "a member is pending"
    scene.give("Read")
    assert scene.output() == ("M", (("R", 3, 2), ("R", 6, 1)), None, ())


def test_a_set_that_is_closed_without_more_fires_at_once() -> None:
    scene = Scene(clips())
    scene.admit()
    arrive(scene, only(scene, "cut"), 1, first=0)
    scene.give("Read")
    scene.give("cut", shapes=[0])
    assert scene.parents[0, 0].children == 1
    assert scene.outcome() == "COMPLETED"


def test_chunks_of_two_parents_come_between_each_other() -> None:
    scene = Scene(clips(replicas=2))
    scene.admit(2)
    one, other = scene.sent
    for first in range(3):
        arrive(scene, one, 1, first=first)
        arrive(scene, other, 1, first=first)
    while scene.sent[-1].call == 1:
        scene.give("Read")
    scene.give("cut", shapes=[0])
    scene.give("cut", shapes=[0])
    for row in (0, 1):
        (_, parts, ordinals, missing) = scene.output(row)
        slots = [slot for _, first, n in parts for slot in range(first, first + n)]
        assert (len(slots), sorted(slots), ordinals, missing) == (3, slots, None, ())
    assert scene.scheduler.runs[0].mb.lineage.spans(1, 1) == [(1, 2), (3, 4), (5, 6)]


@pytest.mark.parametrize("on_failure", ["fail", "skip", "keep"])
def test_a_cut_that_fails_for_good_suppresses_what_has_arrived(on_failure: str) -> None:
    scene = Scene(clips(on_failure))
    scene.admit()
    arrive(scene, only(scene, "cut"), 5, first=0)
    scene.give("cut", shapes=[0], failures={0: ENCRYPTED})
    assert scene.outcome() == "FAILED"
    assert scene.cause() == ("cut", "Encrypted", ())
    assert scene.outcomes("Read") == ["SUPPRESSED"] * 5
    assert scene.parents[0, 0].children == 0
    assert set(range(6)) == scene.released, "the source row and the clips go"
    scene.give("Read")
    assert set(range(6, 10)) < scene.released, "what was being read is dropped"


def test_another_try_goes_on_after_what_has_arrived() -> None:
    scene = Scene(clips())
    scene.admit()
    arrive(scene, only(scene, "cut"), 3, first=0)
    scene.give("Read")
    scene.lose("cut")
    assert only(scene, "cut").taken == ((0, 3),)
    arrive(scene, only(scene, "cut"), 1, first=3)
    scene.give("cut", shapes=[1])
    while scene.sent:
        scene.give("Read")
    assert scene.parents[0, 0].children == 5
    assert scene.outcome() == "COMPLETED"


def test_clips_that_arrive_under_a_bar_are_suppressed() -> None:
    def replaced(source: Any) -> Any:
        return F.coalesce(clips("skip")(source), source)

    scene = Scene(replaced)
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.give("Read", failures={0: SPOILED})
    arrive(scene, only(scene, "cut"), 2, first=2)
    assert scene.outcomes("Read") == ["FAILED", *["SUPPRESSED"] * 3]
    assert len(scene.sent) == 1, "nothing more is read"
    scene.give("cut", shapes=[1])
    assert scene.outcomes("Read") == ["FAILED", *["SUPPRESSED"] * 4]
    assert scene.outcome() == "COMPLETED"


def test_clips_of_a_doomed_video_are_let_go() -> None:
    scene = Scene(clips())
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.give("Read", failures={0: ENCRYPTED})
    assert scene.cause() == ("Read", "Encrypted", (0,))
    arrive(scene, only(scene, "cut"), 2, first=2)
    assert len(scene.outcomes("Read")) == 2
    assert len(scene.sent) == 1, "nothing more is read"


def titled_clips(source: Any) -> Any:
    clip = F.expand(stage(cut)(source), domain="clip")
    title = F.broadcast(named("Title")(source), like=clip)
    return F.reduce(named("Join")(clip, title))


def test_children_of_a_failed_cut_wait_for_nothing_that_is_broadcast() -> None:
    scene = Scene(titled_clips)
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.give("cut", shapes=[0], failures={0: ENCRYPTED})
    assert scene.outcomes("Join") == ["SUPPRESSED"] * 2
    scene.give("Title")
    assert scene.released == set(range(4))


def test_a_broadcast_reaches_the_chunks_before_it_and_after() -> None:
    scene = Scene(titled_clips)
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.give("Title")
    arrive(scene, only(scene, "cut"), 1, first=2)
    scene.give("cut", shapes=[0])
    scene.give("Join")
    scene.give("Join")
    assert scene.outcome() == "COMPLETED"


def test_children_of_a_barred_row_are_let_go() -> None:
    def shows(source: Any) -> Any:
        clip = F.expand(stage(cut, replicas=2)(F.expand(source, domain="video")), domain="clip")
        return F.reduce(F.reduce(named("Read")(clip)))

    scene = Scene(shows)
    scene.admit(1, [2])
    one, other = scene.sent
    arrive(scene, other, 1, first=0)
    scene.give("cut", shapes=[0], failures={0: SPOILED})
    assert scene.outcomes("Read") == ["SUPPRESSED"]
    assert other in scene.sent
    arrive(scene, other, 2, first=1)
    assert scene.outcomes("Read") == ["SUPPRESSED"]
    assert one.worker != other.worker
    assert {3, 4} <= scene.released


def test_children_that_come_late_are_let_go() -> None:
    scene = Scene(clips())
    scene.admit()
    old = only(scene, "cut")
    arrive(scene, old, 1, first=0)
    scene.lose("cut")
    arrive(scene, old, 2, first=1)
    assert {2, 3} <= scene.released
    assert len(scene.outcomes("Read")) == 1


@pytest.mark.parametrize(("first", "n", "row"), [(1, 1, 0), (3, 1, 0), (2, 0, 0), (2, 1, 1)])
def test_a_chunk_that_does_not_follow_is_refused(first: int, n: int, row: int) -> None:
    scene = Scene(clips())
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    before = snapshot(scene.scheduler)
    with pytest.raises(IllegalEvent, match="row"):
        arrive(scene, only(scene, "cut"), n, first=first, row=row)
    assert snapshot(scene.scheduler) == before


def test_a_list_that_a_stage_reads_whole_is_there_when_the_set_is_closed() -> None:
    def videos(source: Any) -> Any:
        listed = stage(cut)(source)
        read = named("Read")(F.expand(listed, domain="clip"))
        return named("Count")(listed), F.reduce(read)

    scene = Scene(videos)
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.give("Read")
    scene.give("cut", shapes=[1])
    assert only(scene, "Count").inputs == ((("L", (("R", 1, 2), ("R", 5, 1))),),)


@pytest.mark.parametrize(
    ("declared", "chunked"),
    [
        (lambda source: F.expand(stage(cut)(source), domain="clip"), (1,)),
        (lambda source: stage(cut)(source), ()),
        (lambda source: F.expand(named("Cut")(source), domain="clip"), ()),
        (
            lambda source: F.expand(
                F.coalesce(stage(cut)(source), named("Cut")(source)), domain="clip"
            ),
            (),
        ),
        (lambda source: F.expand_aligned(*stage(cut, outputs=2)(source), domain="clip"), (1,)),
        (lambda source: F.expand(stage(cut, outputs=2)(source)[0], domain="clip"), ()),
    ],
)
def test_which_domains_come_in_chunks(declared: Any, chunked: tuple[int, ...]) -> None:
    scene = Scene(declared, workers=False)
    assert scene.plan.calls[0].chunked == chunked


def test_a_run_with_chunks_is_replayed_from_its_events() -> None:
    scene = Scene(clips("skip"))
    scene.admit()
    arrive(scene, only(scene, "cut"), 2, first=0)
    scene.lose("cut")
    scene.give("Read", failures={1: ENCRYPTED})
    scene.give("cut", shapes=[1])
    scene.give("Read")
    twin = Scheduler(scene.plan)
    twin.start()
    for event in scene.events:
        twin.handle(event)
    assert snapshot(twin) == snapshot(scene.scheduler)
