"""Workers that die."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, F, Program, program, run_local, stage
from rayorch_prefect.errors import StageStartError
from tests.execution.conftest import Notes, eventually

SIZE = 100_000


class Both:
    """Serves two Calls: makes children, and works on them; dies once at child (2, 1)."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, rows: list[Any]) -> list[Any]:
        if isinstance(rows[0], int):
            self.notes.add(f"split {rows}")
            return [[np.full(SIZE, 10 * row + i) for i in range(3)] for row in rows]
        firsts = [int(row[0]) for row in rows]
        self.notes.add(f"work {firsts}")
        if 21 in firsts and self.notes.first_time("death"):
            os.kill(os.getpid(), signal.SIGKILL)
        return firsts


def shared(notes: Notes) -> Program:
    @program
    def two_calls(row: Any) -> Any:
        both = stage(Both, batch_size=4)(notes)
        return F.reduce(both(F.expand(both(row), domain="child")))

    return two_calls


def test_a_worker_killed_in_a_batch_loses_nothing_computed_before(
    cluster: str, notes: Notes
) -> None:
    made = shared(notes)
    assert len(made.plan.pools) == 1
    with Engine(made) as engine:
        parents = list(engine.run(range(4)))
        values = {parent.index: parent.value() for parent in parents}
        metrics = engine.metrics

    assert sorted(parent.index for parent in parents) == [0, 1, 2, 3]
    assert values == {row: [10 * row + i for i in range(3)] for row in range(4)}
    assert metrics.workers_lost == 1
    assert sum(line.startswith("split") for line in notes.lines()) == 1
    # The batch of several is charged to nobody.
    assert {parent.attempts for parent in parents} == {1}
    assert [call.grains for call in metrics.calls] == [4, 12]


def test_an_idle_worker_that_is_killed_is_replaced(cluster: str, notes: Notes) -> None:
    class Pid:
        def __call__(self, rows: list[int]) -> list[int]:
            return [os.getpid() for _ in rows]

    @program
    def pids(row: Any) -> Any:
        return stage(Pid, batch_size=2)()(row)

    with Engine(pids) as engine:
        (first,) = {parent.value() for parent in engine.run(range(2))}
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not alive(first))
        (second,) = {parent.value() for parent in engine.run(range(2))}
        assert engine.metrics.workers_lost == 1
    assert first != second


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_lethal_row_is_isolated(cluster: str, notes: Notes) -> None:
    class Lethal:
        def __call__(self, rows: list[int]) -> list[int]:
            notes.add(rows)
            if 2 in rows:
                os._exit(7)
            return rows

    @program
    def lethal(row: Any) -> Any:
        return stage(Lethal, batch_size=4, retry_budget=2)()(row)

    with Engine(lethal) as engine:
        parents = {parent.index: parent for parent in engine.run(range(4))}
        values = {index: parents[index].value() for index in (0, 1, 3)}

    assert values == {0: 0, 1: 1, 3: 3}
    cause = parents[2].cause
    assert cause
    assert (cause.kind.value, cause.type, cause.attempts) == ("AttemptsExhausted", "WorkerDied", 2)
    assert "died" in cause.message
    assert "\n" not in cause.message
    tried = [line for line in notes.lines() if "2" in line]
    assert tried == ["[0, 1, 2, 3]", "[2, 3]", "[2]", "[2]"]
    assert notes.lines().count("[0, 1]") == 1


# -- before the first start --------------------------------------------------------------------


class Refuses:
    def __init__(self, how: str) -> None:
        logging.warning("no file of that name")
        if how == "raise":
            raise ValueError("no such model: small-7b")
        if how == "exit":
            raise SystemExit("model missing")
        if how == "die":
            os._exit(3)

    def __call__(self, rows: list[int]) -> list[int]:
        return rows


def refusing(how: str) -> Program:
    @program
    def refused(row: Any) -> Any:
        return stage(Refuses, replicas=2)(how)(row)

    return refused


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ValueError: no such model: small-7b"),
        ("exit", "SystemExit: model missing"),
        ("die", "died"),
    ],
)
def test_a_constructor_that_fails_ends_the_start(
    cluster: str, caplog: pytest.LogCaptureFixture, how: str, said: str
) -> None:
    with pytest.raises(StageStartError, match=f"stage Refuses: .*{said}"), Engine(refusing(how)):
        pytest.fail("it was entered")
    logged = [each.message for each in caplog.records if each.name == "rayorch_prefect.stages"]
    if how != "die":
        assert logged[0] == "stage Refuses: no file of that name"


def test_a_constructor_that_fails_in_process() -> None:
    for how, said in (("raise", "no such model"), ("exit", "model missing")):
        with pytest.raises(StageStartError, match=f"stage Refuses: .*{said}"):
            list(run_local(refusing(how), [1]))


def test_a_constructor_that_fails_later_ends_the_open_runs(cluster: str, notes: Notes) -> None:
    class Once:
        """Its replacement cannot be built any more."""

        def __init__(self) -> None:
            if not notes.first_time("built"):
                raise OSError("licence used up")

        def __call__(self, rows: list[int]) -> list[int]:
            os._exit(1)

    @program
    def once(row: Any) -> Any:
        return stage(Once)()(row)

    def end(run: Any) -> str:
        with pytest.raises(StageStartError) as raised:
            list(run)
        return str(raised.value)

    with Engine(once) as engine:
        said = [end(run) for run in (engine.submit([1, 2]), engine.submit([3]))]
        said.append(end(engine.submit([4])))
    assert all("stage Once" in text and "licence used up" in text for text in said)


def test_constructor_arguments_that_cannot_be_sent(cluster: str) -> None:
    lock = threading.Lock()

    @program
    def unsendable(row: Any) -> Any:
        return stage(lambda row: [lock, row])(row)

    with pytest.raises(StageStartError, match=r"cannot be sent.*cannot pickle.*lock"):
        Engine(unsendable).__enter__()
