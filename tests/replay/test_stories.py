"""What is told of a Grain's life."""

from __future__ import annotations

import pytest

from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import MicrobatchAbandoned, RowsReleased
from rayorch_prefect.program import F
from rayorch_prefect.scheduler import story
from rayorch_prefect.scheduler.telling import parsed_path, story_of
from tests.scheduler.scenes import BOOM, ENCRYPTED, SPOILED, Scene, named, pages_read


def told(scene: Scene, *path: int, row: int = 0, microbatch: int = 0) -> list[str]:
    text = story_of(scene.scheduler, microbatch, row, path)
    return [line.strip() for line in text.splitlines()]


def test_each_try_of_a_grain_is_told_in_order() -> None:
    scene = Scene(pages_read(batch_size=2, rowwise=True))
    scene.admit(1, [2])
    assert told(scene, 1) == [
        "page 1, microbatch 0, row 0",
        "Read (Call 0): IN_FLIGHT",
        "event 2: ready",
        "event 2: sent in batch 0 to worker 1 with 1 others",
        "reduce Read at source: waits for 2 Items",
        "parent: has not ended",
    ]
    scene.lose()
    scene.give()
    scene.give(failures={0: BOOM})
    scene.give()
    assert told(scene, 1)[1:] == [
        "Read (Call 0): ENDED, PRESENT",
        "event 2: ready",
        "event 2: sent in batch 0 to worker 1 with 1 others",
        "event 3: worker lost (WorkerDied: out of memory)",
        "event 5: sent in batch 2 to worker 2 alone",
        "event 6: this row attempt failed: ValueError: boom",
        "event 6: sent in batch 3 to worker 2 alone",
        "event 7: reported 1 rows",
        "generation 2, 1 of 3 attempts charged",
        "reduce Read at source: PRESENT",
        "parent: COMPLETED",
    ]


def test_a_bar_is_told_with_who_caused_it() -> None:
    scene = Scene(pages_read(batch_size=2))
    scene.admit(1, [4])
    scene.give(failures={1: SPOILED})
    spoiled = "GroupFailure[Spoiled] in stage Read at page 1: the whole group"
    assert told(scene, 3)[1:] == [
        f"Read (Call 0): ENDED, SUPPRESSED by {spoiled}",
        "event 2: ready",
        "event 2: sent in batch 1 to worker 1 with 1 others",
        f"barred under source by {spoiled}",
        f"reduce Read at source: SUPPRESSED by {spoiled}",
        f"parent: FAILED by {spoiled}",
    ]
    assert "event 3: this row failed for good as GroupFailure: Spoiled: the whole group" in told(
        scene, 1
    )


def test_a_gap_is_told_at_its_parent() -> None:
    scene = Scene(pages_read("skip", batch_size=2))
    scene.admit(1, [2])
    scene.give(failures={0: ENCRYPTED})
    failed = "RecordFailure[Encrypted] in stage Read at page 0: needs a password"
    assert told(scene, 0)[-2:] == [
        "reduce Read at source: PRESENT, this one left out: a gap",
        f"parent: COMPLETED; gap at page 0 ({failed})",
    ]
    assert told(scene, 1)[-2] == "reduce Read at source: PRESENT"


def test_what_a_grain_waits_for_is_told() -> None:
    read, check = named("Read"), named("Check")
    scene = Scene(lambda source: check(read(source), source))
    scene.admit(2)
    assert told(scene, row=1)[-2:] == ["Check (Call 1): WAITING for Read", "parent: has not ended"]


def test_paths_lead_into_domains_side_by_side() -> None:
    split, read = named("Split", outputs=2), named("Read")

    def both(source: object) -> object:
        pages, words = split(source)
        return F.reduce(read(F.expand(pages, domain="page"))), F.reduce(
            F.expand(words, domain="word")
        )

    scene = Scene(both)
    scene.admit(1)
    scene.give("Split", shapes=[2])
    lines = told(scene, 1)
    assert lines[0] == "page 1, microbatch 0, row 0"
    assert "word 1, microbatch 0, row 0" in lines
    with pytest.raises(UsageError, match=r"row 0 has nothing at 2/7: source has 2 of page, 2 of w"):
        told(scene, 2, 7)
    with pytest.raises(UsageError, match="row 0 has nothing at 1/0: page 1 has no children"):
        told(scene, 1, 0)
    with pytest.raises(UsageError, match="microbatch 0 has rows 0 to 0, not 3"):
        told(scene, row=3)


def test_a_microbatch_that_has_left_is_remembered_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(story, "ENTITIES_REMEMBERED", 10)
    scene = Scene(pages_read("skip", batch_size=2))
    for number in range(3):
        scene.admit(1, [3])
        scene.give(failures={1: ENCRYPTED})
        scene.give()
        before = told(scene, 1, microbatch=number)
        scene.tell(RowsReleased(number, (0,)))
        assert told(scene, 1, microbatch=number) == before
        assert before[-1].startswith("parent: COMPLETED; gap at page 1")
    assert story_of(scene.scheduler, 0, 0, (1,)) == (
        "microbatch 0 has left, and is no longer remembered"
    )
    assert len(scene.scheduler.memory.left) == 2


def test_an_abandoned_microbatch_is_told_as_such() -> None:
    scene = Scene(pages_read(batch_size=2))
    scene.admit(1, [3])
    scene.tell(MicrobatchAbandoned(0))
    assert told(scene, 0)[-1] == "parent: abandoned before its end"


def test_memory_is_bounded_and_what_is_forgotten_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "REMEMBERED", 4)
    monkeypatch.setattr(story, "READY_REMEMBERED", 2)
    scene = Scene(pages_read("skip", batch_size=1, retry_budget=9))
    for _ in range(4):
        scene.admit(1, [3])
    for _ in range(8):
        scene.give(failures={0: ENCRYPTED})
    forgotten = "(not all of it is remembered)"
    assert forgotten in told(scene, 0)
    assert forgotten not in told(scene, 2, microbatch=3)


def test_failures_of_rows_are_forgotten_before_their_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(story, "REMEMBERED", 3)
    scene = Scene(pages_read("skip", batch_size=2))
    scene.admit(1, [4])
    scene.give(failures={0: ENCRYPTED, 1: ENCRYPTED})
    assert "event 3: this row failed for good as RecordFailure: Encrypted" in told(scene, 0)[4]
    scene.give(failures={0: ENCRYPTED, 1: ENCRYPTED})
    assert "2 failed (which rows, is no longer remembered)" in told(scene, 0)[4]
    assert "event 4: this row failed for good as RecordFailure: Encrypted" in told(scene, 3)[4]


@pytest.mark.parametrize(
    ("path", "ordinals"),
    [("", ()), ((), ()), ("3/7", (3, 7)), ("/3/", (3,)), ((3, 7), (3, 7)), ([0], (0,))],
)
def test_paths(path: str | tuple[int, ...], ordinals: tuple[int, ...]) -> None:
    assert parsed_path(path) == ordinals


@pytest.mark.parametrize("path", ["x", "3/-1", (-1,), "3.5", (None,)])
def test_what_is_no_path_is_refused(path: str | tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"expected ordinals from 0, such as \(3, 7\) or '3/7'"):
        parsed_path(path)
