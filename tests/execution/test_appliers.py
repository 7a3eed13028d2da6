"""`Engine.apply`: functions applied to values near the data."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError

from rayorch_prefect import Engine, Parent, RecordFailure, program, stage
from rayorch_prefect.errors import EngineClosed, ParentNotCompleted
from tests.execution.conftest import Notes, eventually
from tests.execution.test_deaths import alive


def blow_up(row: int) -> Any:
    if row < 0:
        raise RecordFailure("Negative", "of its own")
    return np.full(row, 7, dtype=np.uint8)


@program
def blown_up(row: Any) -> Any:
    return stage(blow_up)(row)


@pytest.fixture
def engine(cluster: str) -> Iterator[Engine]:
    with Engine(blown_up, appliers=2) as engine:
        yield engine


def parent_of(engine: Engine, row: int) -> Parent:
    (parent,) = engine.run([row])
    return parent


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_a_function_gets_the_value_in_another_process(engine: Engine, size: int) -> None:
    parent = parent_of(engine, size)

    def total(value: Any, more: int) -> tuple[int, int]:
        return int(value.sum()) + more, os.getpid()

    found, pid = engine.apply(total, parent, 5).result(60)
    assert found == 7 * size + 5
    assert pid != os.getpid()


def test_what_the_function_raises_is_in_the_future(engine: Engine) -> None:
    def refuse(value: Any) -> None:
        raise FileNotFoundError(2, "no bucket", "out")

    failed = engine.apply(refuse, parent_of(engine, 1))
    with pytest.raises(FileNotFoundError) as raised:
        failed.result(60)
    assert str(raised.value) == "[Errno 2] no bucket: 'out'"
    assert "in refuse" in raised.value.__notes__[0]


class Picky(Exception):
    """Pickles, and does not come back."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"code {code} at {where}")


def test_an_error_that_cannot_be_pickled_is_told_in_words(engine: Engine, notes: Notes) -> None:
    def refuse(value: Any) -> None:
        notes.add("tried")
        raise Picky(7, "home")

    with pytest.raises(RuntimeError, match="Picky: code 7 at home"):
        engine.apply(refuse, parent_of(engine, 1)).result(60)
    assert notes.lines() == ["tried"]


def test_a_function_that_cannot_be_sent_is_an_error_of_its_future(engine: Engine) -> None:
    parent, lock = parent_of(engine, 1), threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        engine.apply(lambda value: lock, parent).result(60)
    with pytest.raises(TypeError, match="lock"):
        engine.apply(lambda value, other: 1, parent, lock).result(60)
    assert engine.apply(len, parent).result(60) == 1


def test_a_failed_parent_has_nothing_to_apply_to(engine: Engine) -> None:
    with pytest.raises(ParentNotCompleted, match=r"row 0 is FAILED.*Negative"):
        engine.apply(len, parent_of(engine, -1))


def test_an_applier_that_dies_once_is_replaced(engine: Engine, notes: Notes) -> None:
    def mortal(value: Any) -> int:
        if notes.first_time("died"):
            os._exit(1)
        return len(value)

    assert engine.apply(mortal, parent_of(engine, 100_000)).result(60) == 100_000
    assert len(notes.lines()) == 2


def test_appliers_that_died_idle_cost_no_call_its_tries(cluster: str, notes: Notes) -> None:
    """As where the node dies that most of them are on."""

    def pid(value: Any) -> int:
        notes.add("began")
        eventually(lambda: notes.lines().count("began") >= 4)
        return os.getpid()

    with Engine(blown_up, appliers=4) as engine:
        parent = parent_of(engine, 1)
        pids = {future.result(60) for future in [engine.apply(pid, parent) for _ in range(4)]}
        assert len(pids) == 4
        for each in pids:
            os.kill(each, signal.SIGKILL)
        eventually(lambda: not any(map(alive, pids)))
        assert engine.apply(len, parent).result(60) == 1
        metrics = engine.metrics
    assert (metrics.appliers_lost, metrics.applied_again) == (1, 1)


def test_an_applier_that_always_dies_is_given_up(engine: Engine, notes: Notes) -> None:
    def lethal(value: Any) -> None:
        notes.add("died")
        os._exit(1)

    parent = parent_of(engine, 1)
    with pytest.raises(RayActorError):
        engine.apply(lethal, parent).result(60)
    assert len(notes.lines()) == 3
    assert engine.apply(len, parent).result(60) == 1


def test_a_future_that_its_owner_cancels_harms_nobody(engine: Engine, notes: Notes) -> None:
    """As `asyncio.wrap_future` does when the flow that waits is cancelled."""
    parent = parent_of(engine, 1)
    busy = [engine.apply(wait_for_go, parent, notes) for _ in range(2)]
    eventually(lambda: notes.lines().count("began") == 2)
    waiting = engine.apply(len, parent)
    assert waiting.cancel()
    assert not busy[0].cancel()
    notes.add("go")
    assert [future.result(60) for future in busy] == [1, 1]
    with pytest.raises(CancelledError):
        waiting.result(0)
    assert engine.apply(len, parent).result(60) == 1


def wait_for_go(value: Any, notes: Notes) -> int:
    notes.add("began")
    while "go" not in notes.lines():
        time.sleep(0.02)
    return len(value)


def test_leaving_the_engine_ends_what_is_running_and_waiting(cluster: str, notes: Notes) -> None:
    with Engine(blown_up, appliers=1) as engine:
        parent = parent_of(engine, 1)
        futures = [engine.apply(wait_for_go, parent, notes) for _ in range(3)]
        eventually(lambda: "began" in notes.lines())
        assert futures[2].cancel()
    for future in futures[:2]:
        with pytest.raises(EngineClosed, match="left before this was done"):
            future.result(20)
    with pytest.raises(CancelledError):
        futures[2].result(0)
    with pytest.raises(EngineClosed):
        engine.apply(len, parent)
