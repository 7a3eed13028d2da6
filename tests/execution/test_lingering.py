"""A stage that asks to linger, on real workers and a real clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rayorch_prefect import Engine, Program, program, run_local, stage
from tests.execution.conftest import Notes


class Arrives:
    """Rows come one after another; the last one, by `waits`, once a batch of them was read."""

    def __init__(self, notes: Notes, waits: bool) -> None:
        self.notes = notes
        self.waits = waits

    async def __call__(self, row: int) -> int:
        await asyncio.sleep(0.05 * row)
        while self.waits and row == 7 and not self.notes.lines():
            await asyncio.sleep(0.02)
        return row


class Read:
    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, rows: list[int]) -> list[int]:
        self.notes.add(len(rows))
        return rows


def arriving(notes: Notes, linger_s: float, waits: bool) -> Program:
    @program
    def arrive(row: int) -> Any:
        arrived = stage(Arrives, concurrency=16)(notes, waits)(row)
        return stage(Read, batch_size=16, linger_s=linger_s)(notes)(arrived)

    return arrive


@pytest.mark.parametrize("local", [True, False])
def test_a_batch_waits_for_all_that_may_come_and_no_longer(
    request: pytest.FixtureRequest, notes: Notes, local: bool
) -> None:
    """The wait is far longer than the test's limit."""
    made = arriving(notes, 1000.0, waits=False)
    if local:
        parents = list(run_local(made, range(8)))
    else:
        request.getfixturevalue("cluster")
        # A bound lets a small first batch go, as the size of what it makes is not known yet.
        with Engine(made, max_pending_mb=None) as engine:
            parents = list(engine.run(range(8)))
    assert sorted(parent.value() for parent in parents) == list(range(8))
    assert notes.lines() == ["8"]


def test_a_part_filled_batch_goes_after_its_time(cluster: str, notes: Notes) -> None:
    with Engine(arriving(notes, 0.2, waits=True)) as engine:
        parents = list(engine.run(range(8)))
    assert sorted(parent.value() for parent in parents) == list(range(8))
    assert len(notes.lines()) > 1
