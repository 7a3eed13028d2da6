"""Async stages with several rows in flight in one worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
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
from rayorch_prefect.execution import deadlines
from rayorch_prefect.execution.async_rows import AsyncRows
from rayorch_prefect.execution.bars import Bars
from rayorch_prefect.execution.codec import encode
from rayorch_prefect.execution.memory import MemoryLimit
from rayorch_prefect.execution.messages import BatchMessage, RowsReply
from rayorch_prefect.execution.specs import contracts, stage_spec
from rayorch_prefect.execution.stage_runner import StageRunner
from tests.execution.conftest import Notes

LARGE = 200_000


class Ask:
    """As a client of a service: built on the loop of its rows, and closed there. Row 0 ends once as
    many others as it `waits_for` have."""

    def __init__(self, notes: Notes, waits_for: int = 0) -> None:
        self.notes = notes
        self.waits_for = waits_for
        self.loop = asyncio.get_running_loop()
        self.in_flight = 0

    async def __call__(self, row: int) -> Any:
        assert asyncio.get_running_loop() is self.loop
        self.in_flight += 1
        self.notes.add(f"flying {self.in_flight}")
        await asyncio.sleep(0.02)
        while row == 0 and self.notes.lines().count("ended") < self.waits_for:
            await asyncio.sleep(0.02)
        self.in_flight -= 1
        self.notes.add("ended")
        if row == 3:
            raise RecordFailure("Three", "of all")
        if row in (4, 5):
            raise (ValueError if row == 4 else SystemExit)("odd")
        return np.full(LARGE, row) if row % 2 else ConnectionError(str(row))

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.notes.add("closed")


async def told(answer: Any) -> str:
    """Reads large values, and exceptions that are values."""
    return str(int(answer[0]) if isinstance(answer, np.ndarray) else answer)


def asked(notes: Notes, waits_for: int = 0) -> Program:
    @program
    def asks(row: int) -> Any:
        options: Any = {"concurrency": 8, "retry_budget": 2, "recycle_after_batches": 20}
        ask = stage(Ask, **options)(notes, waits_for)
        return stage(told, concurrency=2)(ask(row))

    return asks


def said(parents: list[Parent]) -> dict[int, Any]:
    return {
        parent.index: parent.cause.type if parent.cause else parent.value() for parent in parents
    }


def test_each_row_ends_on_its_own_and_gives_what_it_gives_alone(cluster: str, notes: Notes) -> None:
    rows = 30
    alone = said(list(run_local(asked(notes), range(rows))))
    assert alone == {row: str(row) for row in range(rows)} | {
        3: "Three",
        4: "ValueError",
        5: "SystemExit",
    }
    lines = notes.lines()
    assert set(lines) == {"flying 1", "ended", "closed"}
    # Row 0 ends after all others, those that are tried again twice.
    with Engine(asked(notes, lines.count("ended") + rows + 1)) as engine:
        assert said(list(engine.run(range(rows)))) == alone
        metrics = engine.metrics
    assert (metrics.workers_lost, metrics.workers_recycled) == (0, 1)
    flying = [int(line.split()[1]) for line in notes.lines() if line.startswith("flying")]
    assert 2 < max(flying) <= 8
    assert notes.lines().count("closed") == 4  # worn, and at the end, both times


class Stuck(Ask):
    """Row 2 never ends; `how` it takes being cancelled."""

    def __init__(self, notes: Notes, how: str) -> None:
        super().__init__(notes)
        self.how = how

    async def __call__(self, row: int) -> int:
        self.notes.add(f"{os.getpid()} {row}")
        if row == 2 and self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if row == 2 and self.how == "held up":
            time.sleep(600)
        while row == 2:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                if self.how == "cancelled":
                    raise
        await asyncio.sleep(0.3)
        return 10 * row


def stuck(notes: Notes, how: str, limit_s: float = 1.0) -> Program:
    @program
    def sticks(source: Any) -> Any:
        work = stage(Stuck, concurrency=4, retry_budget=2, row_limit_s=limit_s)(notes, how)
        return F.reduce(work(F.expand(source, domain="child")), on_failure="skip")

    return sticks


def begun(notes: Notes, row: int) -> list[str]:
    """The processes that have begun a row."""
    return [line.split()[0] for line in notes.lines() if line.endswith(f" {row}")]


@pytest.mark.parametrize("how", ["cancelled", pytest.param("deaf", marks=pytest.mark.slow)])
def test_a_row_at_its_limit_is_cancelled_and_costs_itself_alone(
    cluster: str, notes: Notes, how: str
) -> None:
    with Engine(stuck(notes, how)) as engine:
        (parent,) = engine.run([list(range(6))])
        assert list(parent.value()) == [0, 10, 30, 40, 50]
        metrics = engine.metrics
    (gap,) = parent.gaps
    assert (gap.path, gap.cause.type, gap.cause.attempts) == ((2,), "DeadlineExceeded", 2)
    assert "stage Stuck: a row was cancelled past its limit of 1 s" in gap.cause.message
    assert [len(begun(notes, row)) for row in range(6)] == [1, 1, 2, 1, 1, 1]
    # A worker with a row that does not end is closed when it has done the others.
    assert metrics.workers_recycled + metrics.workers_lost >= (how == "deaf")
    assert len(set(begun(notes, 2))) == 1 + (how == "deaf")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "held up"])
def test_a_row_that_ends_its_worker_is_isolated(
    cluster: str, notes: Notes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "NO_ANSWER_S", 1.0)
    with Engine(stuck(notes, how)) as engine:
        (parent,) = engine.run([list(range(6))])
        assert list(parent.value()) == [0, 10, 30, 40, 50]
    (gap,) = parent.gaps
    assert (gap.path, gap.cause.attempts) == ((2,), 2)
    assert gap.cause.type == ("WorkerDied" if how == "killed" else "DeadlineExceeded")
    # With five, with three or fewer, and twice alone.
    assert 3 <= len(begun(notes, 2)) <= 4


# -- one worker's rows, without Ray ---------------------------------------------------------------


def one_row(program: Program, value: Any) -> BatchMessage:
    chunk = encode([value]).small
    return BatchMessage(
        0,
        0,
        1,
        ((("R", 0, 0, 1),),),
        (chunk,),
        (),
        0,
        bars=((0, 0, 7),) if value == "barred" else (),
    )


async def replies(program: Program, values: list[Any], limit_s: float | None) -> list[Any]:
    """What a worker says of rows that are sent to it at once."""
    (pool,) = program.plan.pools
    runner = StageRunner(stage_spec(pool), shares_loop=True)
    rows, bars = AsyncRows(runner, pool.stage, limit_s), Bars()
    bars.tell([(0, 0, 7)])
    contract = contracts(program.plan, 0)[0]
    calls = (rows.run(contract, one_row(program, value), lambda refs: [], bars) for value in values)
    return [reply for reply, _ in await asyncio.gather(*calls)]


def running(target: Any, **options: Any) -> Program:
    @program
    def runs(source: Any) -> Any:
        return stage(target, concurrency=4, **options)(source)

    return runs


def test_a_row_whose_group_is_barred_does_not_start() -> None:
    async def spoils(row: str) -> Any:
        assert row != "barred"
        return GroupFailure("Spoiled", row)

    skipped, failed = asyncio.run(replies(running(spoils), ["barred", "first"], None))
    assert isinstance(skipped, RowsReply)
    assert isinstance(failed, RowsReply)
    assert (skipped.skipped, failed.skipped) == ((0,), ())
    assert failed.failures[0].type == "Spoiled"


def test_time_in_which_a_neighbour_holds_the_loop_up_is_not_a_rows_own() -> None:
    async def waits(how: str) -> str:
        if how == "holds":
            time.sleep(0.6)
        await asyncio.sleep(0.2)
        return how

    found = asyncio.run(replies(running(waits), ["waits", "holds"], 0.4))
    assert [reply.failures for reply in found] == [{}, {}]


def test_a_memory_limit_that_several_rows_hold_ends_with_the_last() -> None:
    import resource

    def soft() -> int:
        return resource.getrlimit(resource.RLIMIT_DATA)[0]

    before, limit = soft(), MemoryLimit(1024)
    first, second = limit.held(), limit.held()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert soft() != before
    second.__exit__(None, None, None)
    assert soft() == before
