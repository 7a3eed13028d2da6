"""Outcomes and outputs are the same under each policy, in-process and on Ray."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from rayorch_prefect import Engine, F, GroupFailure, Parent, Program, program, run_local, stage
from rayorch_prefect.errors import UsageError
from rayorch_prefect.scheduler.policies import POLICIES, ParentWork

# (document, pages, the page that spoils it)
ROWS = [(0, 40, 0), (1, 3, -1), (2, 40, 39), (3, 0, -1), (4, 17, -1), (5, 40, -1)]


class NewestSmallest:
    """A policy of somebody's own."""

    one_parent = False

    def rank(self, work: ParentWork) -> float:
        return work.size - work.row / 10

    def most(self, work: ParentWork) -> int | None:
        return 2 + work.done


def listed(row: tuple[int, int, int]) -> list[tuple[int, int, bool]]:
    document, pages, spoilt = row
    return [(document, page, page == spoilt) for page in range(pages)]


class Read:
    def __call__(self, pages: list[tuple[int, int, bool]]) -> list[Any]:
        # Long enough that the driver hears of a spoilt page while its siblings wait.
        time.sleep(0.005)
        return [
            GroupFailure("Spoilt", "a page") if spoilt else f"{document}/{page}"
            for document, page, spoilt in pages
        ]


def checked(text: str) -> str:
    return text + "!"


def documents() -> Program:
    @program
    def documents(row: Any) -> Any:
        page = F.expand(stage(listed)(row), domain="page")
        text = stage(Read, batch_size=4, replicas=2)()(page)
        return F.reduce(stage(checked, batch_size=8)(text))

    return documents


def found(parents: Iterable[Parent]) -> dict[int, tuple[str, Any]]:
    return {
        parent.index: (parent.outcome.value, parent.value() if parent.cause is None else None)
        for parent in parents
    }


EXPECTED = {
    document: ("COMPLETED", [f"{document}/{page}!" for page in range(pages)])
    if spoilt < 0
    else ("FAILED", None)
    for document, pages, spoilt in ROWS
}


@pytest.mark.parametrize("policy", [*POLICIES, NewestSmallest()])
def test_outputs_are_the_same_under_each_policy(policy: Any) -> None:
    assert found(run_local(documents(), ROWS, policy=policy, seed=1)) == EXPECTED


@pytest.mark.usefixtures("cluster")
def test_and_on_ray() -> None:
    with Engine(documents(), policy="canary") as engine:
        assert found(engine.run(ROWS)) == EXPECTED
        read = engine.metrics.calls[1]
        # How many depends on when the driver hears of the first page; the simulator's tests and
        # those of the scheduler's states hold the number.
        assert read.suppressed > 0
        assert engine.metrics.doomed >= read.doomed


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="canary"):
        Engine(documents(), policy="newest")
    with pytest.raises(UsageError, match="canary"):
        list(run_local(documents(), ROWS, policy="newest"))
