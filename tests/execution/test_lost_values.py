"""Stored values that are lost are made again, and no outcome changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from rayorch_prefect import (
    F,
    GroupFailure,
    Parent,
    ParentOutcome,
    Program,
    RecordFailure,
    program,
    run_local,
    stage,
)
from rayorch_prefect.execution import codec
from rayorch_prefect.model.outcomes import Kind

ROWS = [3, 0, 5, 1, 7, 4, 2, 6]


@pytest.fixture(autouse=True)
def all_values_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every chunk were large: small ones travel in messages and cannot be lost."""
    monkeypatch.setattr(codec, "LARGE_CHUNK", -1)


class Pages:
    def __call__(self, rows: list[int]) -> list[Any]:
        return [RecordFailure("Six") if n == 6 else [(n, i) for i in range(n)] for n in rows]


class Regions:
    def __call__(self, pages: list[tuple[int, int]]) -> list[Any]:
        return [
            RecordFailure("Spoiled") if page == (7, 3) else [(*page, i) for i in range(page[1] % 3)]
            for page in pages
        ]


def read(region: tuple[int, int, int]) -> str:
    if region == (5, 2, 1):
        raise GroupFailure("Torn")
    if region == (4, 2, 1):
        raise RecordFailure("Illegible")
    return "/".join(map(str, region))


def wide(page: tuple[int, int]) -> bool:
    return page[1] % 2 == 0


def plain(page: tuple[int, int]) -> str:
    return str(page)


class Join:
    def __call__(self, pages: list[list[Any]], rows: list[int]) -> list[Any]:
        return [(n, list(texts)) for n, texts in zip(rows, pages, strict=True)]


@program(version="1")
def nested(source):  # type: ignore[no-untyped-def]
    pages = F.expand(stage(Pages, batch_size=3)()(source), domain="page")
    regions = F.expand(stage(Regions, batch_size=4)()(pages), domain="region")
    texts = stage(read, batch_size=5)(regions)
    texts = F.reduce(texts, on_failure="skip")
    kept = F.filter(texts, stage(wide)(pages))
    either = F.coalesce(kept, stage(plain)(pages))
    return stage(Join, batch_size=2)()(F.reduce(either), source)


def ends(found: list[Parent]) -> dict[int, tuple[Any, ...]]:
    return {
        parent.index: (
            parent.outcome,
            parent.value() if parent.outcome is ParentOutcome.COMPLETED else parent.cause,
            parent.gaps,
        )
        for parent in found
    }


def test_outcomes_and_values_are_those_of_a_run_that_lost_nothing() -> None:
    whole = ends(list(run_local(nested, ROWS)))
    assert Counter(end[0] for end in whole.values()) == {
        ParentOutcome.COMPLETED: 7,
        ParentOutcome.FAILED: 1,
    }
    for seed in range(150):
        found: dict[int, tuple[Any, ...]] = {}
        for parent in run_local(nested, ROWS, seed=seed, losses=0.02, lost_values=0.05):
            # Read at once: what is delivered is lost with the node as well, later.
            found |= ends([parent])
        assert {i: end[0] for i, end in found.items()} == {i: end[0] for i, end in whole.items()}
        assert {i: end for i, end in found.items() if end[0] is ParentOutcome.COMPLETED} == {
            i: end for i, end in whole.items() if end[0] is ParentOutcome.COMPLETED
        }, seed


class Fickle:
    """Children of a row: right at first, another time not."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, rows: list[int]) -> list[Any]:
        return [self.children(n) for n in rows]

    def children(self, n: int) -> Any:
        again = n in SEEN
        SEEN.add(n)
        if not again:
            return list(range(n))
        return RecordFailure("Moody") if self.how == "fails" else list(range(n + 1))


SEEN: set[int] = set()


def fickle(how: str) -> Program:
    @program(version="1")
    def numbers(source):  # type: ignore[no-untyped-def]
        children = F.expand(stage(Fickle, batch_size=2)(how)(source), domain="number")
        return F.reduce(stage(plus)(children))

    return numbers


def plus(n: int) -> int:
    return n + 1


@pytest.mark.parametrize(
    ("how", "told"), [("fails", "Moody"), ("grows", "another number of values")]
)
def test_what_cannot_be_made_again_fails_its_readers_and_nobody_else(how: str, told: str) -> None:
    lost = 0
    for seed in range(40):
        SEEN.clear()
        for parent in run_local(fickle(how), ROWS, seed=seed, lost_values=0.05):
            if parent.outcome is ParentOutcome.COMPLETED:
                assert parent.value() == list(range(1, parent.row + 1))
                continue
            lost += 1
            assert parent.cause is not None
            assert (parent.cause.kind, parent.cause.type) == (Kind.ATTEMPTS_EXHAUSTED, "LostBlock")
            assert told in parent.cause.message
            assert "stage Fickle" in parent.cause.message
    assert 0 < lost < 40 * len(ROWS)
