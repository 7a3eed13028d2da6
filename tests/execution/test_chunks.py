"""Stages that yield: children are worked on while their parent still makes more."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import (
    Engine,
    F,
    GroupFailure,
    Parent,
    Program,
    RecordFailure,
    program,
    run_local,
    stage,
)
from rayorch_prefect.errors import ProgramError
from rayorch_prefect.execution import codec
from rayorch_prefect.model.members import Members
from rayorch_prefect.model.outcomes import Kind
from tests.execution.conftest import Notes, eventually

ROWS = [3, 0, 5, 1, 7, 4, 2, 6, 8]


# -- the same as lists ----------------------------------------------------------------------------


def shots(n: int) -> Iterator[Any]:
    """Of film n, n shots; of some films not all."""
    for i in range(n):
        if (n, i) == (6, 4):
            raise RecordFailure("Torn")
        if (n, i) == (8, 3):
            raise ValueError("always")
        yield (n, i), i % 2 == 0


def listed_shots(n: int) -> Any:
    made = list(shots(n))
    return [shot for shot, _ in made], [mask for _, mask in made]


class Takes:
    """Of shot (n, i), i % 3 takes; a list in a list."""

    def __call__(self, shot: tuple[int, int]) -> Iterator[Any]:
        for j in range(shot[1] % 3):
            if shot == (7, 5):
                raise GroupFailure("Spoiled")
            yield [(*shot, j, k) for k in range(j + 1)]


class ListedTakes:
    def __call__(self, shot: tuple[int, int]) -> Any:
        return list(Takes()(shot))


def frame(row: tuple[int, ...], of: int) -> str:
    if row == (4, 2, 1, 0):
        raise RecordFailure("Dark")
    return f"{of}:{row}"


def films(*, in_chunks: bool, batch_size: int) -> Program:
    cut, take = (shots, Takes) if in_chunks else (listed_shots, ListedTakes)

    @program
    def film(source: Any) -> Any:
        made = stage(cut, outputs=2, batch_size=batch_size, replicas=2, retry_budget=2)(source)
        shot, mask = F.expand_aligned(*made, domain="shot")
        taken = stage(take, rowwise=True, batch_size=batch_size)()(F.filter(shot, mask))
        inner = F.expand(F.expand(taken, domain="take"), domain="frame")
        read = stage(frame, batch_size=batch_size)(inner, F.broadcast(source, like=inner))
        frames = F.reduce(F.reduce(read, on_failure="skip"), on_failure="skip")
        return F.reduce(frames, on_failure="skip"), F.reduce(shot, on_failure="keep")

    return film


def shown(value: Any) -> Any:
    """A value with the ordinals and gaps of its lists."""
    if isinstance(value, Members):
        return list(map(shown, value)), list(value.ordinals), value.missing
    return tuple(map(shown, value)) if isinstance(value, tuple) else value


def told(parent: Parent) -> Any:
    cause = parent.cause
    value = None if cause else shown(parent.value())
    gaps = [(gap.domain, gap.path, gap.cause.type) for gap in parent.gaps]
    return parent.outcome, value, cause and (cause.kind, cause.type, cause.path), gaps


@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_schedule_gives_what_lists_give(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if every chunk were large: small ones cannot be lost.
    monkeypatch.setattr(codec, "LARGE_CHUNK", -1)
    plain = films(in_chunks=False, batch_size=batch_size)
    made = films(in_chunks=True, batch_size=batch_size)
    assert [call.chunked for call in made.plan.calls] == [(1,), (2,), ()]
    wanted = {parent.index: told(parent) for parent in run_local(plain, ROWS)}
    assert Counter(outcome for outcome, *_ in wanted.values())["FAILED"] == 2
    for seed in (None, *range(12)):
        losses = 0.05 if seed and seed % 2 else 0.0
        lost = 0.1 if seed and seed % 3 else 0.0
        parents = run_local(made, ROWS, seed=seed, losses=losses, lost_values=lost)
        found = {parent.index: told(parent) for parent in parents}
        exhausted = [at for at, one in found.items() if one[2] and one[2][1] == "WorkerDied"]
        assert {at: one for at, one in found.items() if at not in exhausted} == {
            at: one for at, one in wanted.items() if at not in exhausted
        }
        assert len(exhausted) <= 2


def test_a_clip_is_worked_on_before_the_last_one_is_cut() -> None:
    seen: list[str] = []

    def cut(n: int) -> Iterator[int]:
        for i in range(n):
            time.sleep(0.03)
            seen.append(f"cut {i}")
            yield i

    def read(clip: int) -> int:
        seen.append(f"read {clip}")
        return clip

    @program
    def video(source: Any) -> Any:
        return F.reduce(stage(read)(F.expand(stage(cut)(source), domain="clip")))

    (parent,) = run_local(video, [3])
    assert parent.value() == [0, 1, 2]
    assert seen.index("read 0") < seen.index("cut 2")


# -- what does not fit ----------------------------------------------------------------------------


def misbehaved(deed: str) -> Generator[Any, None, Any]:
    yield 1
    if deed == "a failed child":
        yield RecordFailure("x")
    if deed == "returned":
        return [2, 3]
    if deed == "unpicklable":
        yield (i for i in "x")
    yield 2
    return None


@pytest.mark.parametrize(
    ("deed", "received"),
    [
        (
            "a failed child",
            "expected a list of children, received a failure among them",
        ),
        ("returned", "all yielded, received a list of length 2, returned"),
        ("unpicklable", "expected values that can be pickled, received a generator"),
    ],
)
def test_a_stage_that_yields_what_does_not_fit(deed: str, received: str) -> None:
    @program
    def yielding(source: Any) -> Any:
        return F.reduce(F.expand(stage(misbehaved)(source), domain="child"))

    good, bad = run_local(yielding, ["good", deed])
    assert good.value() == [1, 2]
    assert bad.cause is not None
    assert bad.cause.kind is Kind.CONTRACT_ERROR
    assert received in bad.cause.message


def test_another_try_that_yields_fewer_is_a_contract_error(notes: Notes) -> None:
    def fewer(row: int) -> Iterator[int]:
        if notes.first_time("once"):
            yield from range(3)
            raise ValueError("after three")
        yield 0

    @program
    def shrinking(source: Any) -> Any:
        return F.reduce(F.expand(stage(fewer)(source), domain="child"))

    for seed in range(20):
        notes.path.unlink(missing_ok=True)
        (parent,) = run_local(shrinking, [1], seed=seed)
        assert parent.cause is None or "that an earlier try gave, received 1" in str(parent.cause)
        if parent.cause is not None and parent.cause.kind is Kind.CONTRACT_ERROR:
            break
    else:
        raise AssertionError("no try had handed over more than one child")


def test_a_returned_failure_stands_in_the_rows_place() -> None:
    def cut(row: int) -> Generator[int, None, Any]:
        yield row
        if row:
            return RecordFailure("Torn")
        return None

    @program
    def returning(source: Any) -> Any:
        return F.reduce(F.expand(stage(cut)(source), domain="child"))

    good, bad = run_local(returning, [0, 1])
    assert good.value() == [0]
    assert bad.cause is not None
    assert bad.cause.type == "Torn"


def test_what_is_yielded_for_no_expand_is_one_list() -> None:
    def pairs(n: int) -> Iterator[tuple[int, str]]:
        for i in range(n):
            yield i, str(i)

    def both(numbers: list[int], texts: list[str]) -> Any:
        return numbers, texts

    @program
    def collected(source: Any) -> Any:
        return stage(both)(*stage(pairs, outputs=2)(source))

    assert [one.value() for one in run_local(collected, [2, 0])] == [([0, 1], ["0", "1"]), ([], [])]


def test_an_async_stage_yields_too() -> None:
    async def cut(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    @program
    def video(source: Any) -> Any:
        return F.reduce(F.expand(stage(cut)(source), domain="clip"))

    assert [one.value() for one in run_local(video, [2, 0])] == [[0, 1], []]


def test_a_stage_that_gets_batches_does_not_yield() -> None:
    class Cut:
        def __call__(self, rows: list[int]) -> Iterator[int]:
            yield from rows

    with pytest.raises(ProgramError, match="stage Cut yields, but gets its rows by the batch"):
        stage(Cut)


# -- on Ray ---------------------------------------------------------------------------------------


class Cutter:
    """The last clip of a video is cut when its first has been read, however long that takes."""

    def __init__(self, notes: Notes, dies: bool) -> None:
        self.notes = notes
        self.dies = dies

    def __call__(self, row: int) -> Iterator[Any]:
        self.notes.add(f"cut {row}")
        for i in range(4):
            if i == 3:
                eventually(lambda: f"read {10 * row}" in self.notes.lines())
                self.notes.add(f"last of {row}")
                if self.dies and self.notes.first_time(f"death at {row}"):
                    os.kill(os.getpid(), signal.SIGKILL)
            yield np.full(100_000 if i % 2 else 10, 10 * row + i)
            time.sleep(0.03)


@pytest.mark.parametrize("dies", [False, True])
def test_clips_are_read_while_their_video_is_cut(cluster: str, notes: Notes, dies: bool) -> None:
    class Read:
        def __call__(self, clips: list[Any]) -> list[int]:
            for clip in clips:
                notes.add(f"read {clip[0]}")
            return [int(clip[0]) for clip in clips]

    @program
    def video(source: Any) -> Any:
        cutter = stage(Cutter, rowwise=True, num_cpus=0, batch_size=1 + dies)(notes, dies)
        clip = F.expand(cutter(source), domain="clip")
        return F.reduce(stage(Read, batch_size=4, num_cpus=0)()(clip))

    with Engine(video) as engine:
        parents = list(engine.run([1, 2]))
        assert {parent.index: parent.value() for parent in parents} == {
            0: [10, 11, 12, 13],
            1: [20, 21, 22, 23],
        }
        del parents
        assert engine.metrics.workers_lost == 2 * dies
        eventually(lambda: not len(engine._live_driver.blocks))
    lines = notes.lines()
    assert lines.index("read 10") < lines.index("last of 1")
    # Clips that had been taken are not read again.
    assert Counter(line for line in lines if line.startswith("read")) == {
        f"read {10 * row + i}": 1 for row in (1, 2) for i in range(4)
    }


@pytest.mark.slow
def test_lists_and_chunks_give_the_same_on_ray(cluster: str) -> None:
    plain = films(in_chunks=False, batch_size=4)
    wanted = {parent.index: told(parent) for parent in run_local(plain, ROWS)}
    with Engine(films(in_chunks=True, batch_size=4)) as engine:
        for _ in range(5):
            assert {parent.index: told(parent) for parent in engine.run(ROWS)} == wanted
