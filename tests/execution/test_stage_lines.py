"""What stages log in their workers is shown with the rows it is about, and bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from rayorch_prefect import Engine, F, Program, program, stage
from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution import log_lines, stage_lines
from rayorch_prefect.execution.backend import LinesCame
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.local_backend import LocalBackend
from rayorch_prefect.execution.log_lines import LONGEST_LINE, LogLines
from rayorch_prefect.execution.messages import Line
from rayorch_prefect.execution.rows import describe_rows
from rayorch_prefect.execution.stage_lines import StageLine
from tests.execution.conftest import Notes

WARNING = logging.WARNING


class Split:
    """Sets up its own logging as it is built, as some do."""

    def __init__(self, notes: Notes | None = None) -> None:
        logging.getLogger("model").warning("loading")
        logging.basicConfig(level=logging.INFO)
        if notes is not None:
            notes.add(logging.getLogger().level)

    def __call__(self, row: int) -> list[tuple[int, int]]:
        logging.info("not asked for")
        return [(row, i) for i in range(3)]

    def close(self) -> None:
        logging.error("closing")


class Deadly:
    """Says what it is about to do."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, child: tuple[int, int]) -> tuple[int, int]:
        if child == (1, 1):
            try:
                raise OSError("torn")
            except OSError:
                logging.exception("child %d", 1)
        if child == (0, 2) and self.notes.first_time(child):
            logging.critical("this ends badly")
            time.sleep(0.2)  # on a full machine it may take as long to leave
            os._exit(1)
        return child


async def beside(child: tuple[int, int]) -> tuple[int, int]:
    await asyncio.sleep(0.01 * (3 - child[1]))
    await asyncio.to_thread(logging.warning, "child %d", child[1])
    return child


class Join:
    def __call__(self, lists: list[Any]) -> list[Any]:
        logging.warning("%d rows", len(lists))
        return lists

    def close(self) -> None:
        logging.error("closing")


def logging_program(notes: Notes) -> Program:
    @program
    def logs(row: Any) -> Any:
        children = F.expand(stage(Split, rowwise=True)(notes)(row), domain="child")
        done = stage(Deadly, rowwise=True, batch_size=6)(notes)(children)
        done = stage(beside, concurrency=3)(done)
        return stage(Join, batch_size=2)()(F.reduce(done))

    return logs


def test_lines_of_workers_name_their_rows(cluster: str, notes: Notes) -> None:
    ours: list[StageLine] = []
    theirs: list[StageLine] = []
    with Engine(logging_program(notes), on_line=theirs.append) as engine:
        run = engine.submit([0, 1], keys=["a", "b"], on_line=ours.append)
        assert {parent.key for parent in run} == {"a", "b"}

    said = [str(line).partition("\n")[0] for line in ours]
    rows = {line for line in said if not line.startswith("stage Join")}
    assert rows >= {
        "stage Deadly, a, child 2: this ends badly",
        "stage Deadly, b, child 1: child 1",
        *(f"stage beside, {key}, child {i}: child {i}" for key in "ab" for i in range(3)),
    }
    assert not [line for line in rows if "not asked for" in line]
    # One batch of both, or one of each.
    joined = {line for line in said if line.startswith("stage Join")}
    alone = {"stage Join, a: 1 rows", "stage Join, b: 1 rows"}
    assert joined in ({"stage Join, a and 1 more: 2 rows"}, alone)
    (torn,) = (line for line in ours if "OSError: torn" in line.text)
    assert (torn.parent, torn.path, torn.level) == (1, (1,), logging.ERROR)
    # What a worker logs as it is built and closed is about no row; its stage's own set-up holds.
    assert {str(line) for line in theirs} >= {
        "stage Split: model: loading",
        "stage Split: closing",
        "stage Join: closing",
    }
    assert notes.lines()[0] == str(logging.INFO)


def same(rows: list[int]) -> list[int]:
    return rows


def test_levels_are_checked() -> None:
    @program
    def toy(row: Any) -> Any:
        return stage(same)(row)

    with pytest.raises(UsageError, match=r"log_level is 'LOUD'; expected one of DEBUG, .*, OFF"):
        Engine(toy, log_level="LOUD")


# -- in the worker ---------------------------------------------------------------------------------


# Of no hierarchy: nobody else hears it.
toy = logging.Logger("toy")


@pytest.fixture
def caught() -> Iterator[LogLines]:
    """What is caught of `toy`."""
    lines = LogLines(lambda: None)
    toy.addHandler(lines)
    yield lines
    toy.removeHandler(lines)


def texts(lines: LogLines) -> list[str]:
    return [line.text for line in lines.take().lines]


def test_a_worker_catches_so_many_lines_a_second_and_counts_the_rest(caught: LogLines) -> None:
    assert caught.due_s is None
    for i in range(log_lines.MOST_A_SECOND + 7):
        toy.warning("%d", i)
    assert caught.due_s == 0.0
    taken = caught.take()
    assert len(taken.lines) == log_lines.MOST_A_SECOND
    assert taken.left_out == ((-1, 7),)
    assert caught.due_s is None
    caught._second -= 1.0
    toy.warning("again")
    assert 0.0 < (caught.due_s or 0.0) <= log_lines.GATHER_S
    assert texts(caught) == ["toy: again"]
    caught.end()
    assert caught.due_s == 0.0
    assert caught.take().last


def test_lines_are_redacted_before_they_are_shortened(
    caught: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "abcdefgh12345678")
    half = (LONGEST_LINE - 3) // 2
    toy.warning("%s", "x" * (half - 10) + "abcdefgh12345678" + "y" * 5000)
    (text,) = texts(caught)
    assert len(text) <= LONGEST_LINE
    assert "***" in text
    assert "abcd" not in text


class Chatty:
    def __repr__(self) -> str:
        toy.warning("who asks?")
        return "chatty"


def test_odd_lines_harm_nobody(caught: LogLines) -> None:
    toy.warning("%r", Chatty())
    toy.warning("%d rows", "no number")
    first, second = texts(caught)
    assert first == "toy: chatty"
    assert second.startswith("toy: %d rows (its arguments do not fit: ")


def test_forked_processes_write_as_without_it(
    caught: LogLines, capfd: pytest.CaptureFixture[str]
) -> None:
    child = os.fork()
    if not child:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        logging.getLogger().handlers = [caught]
        toy.warning("in a fork")
        sys.stderr.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert "in a fork" in capfd.readouterr().err
    assert texts(caught) == []


# -- in the driver ---------------------------------------------------------------------------------


def note(said: list[str], line: StageLine) -> None:
    said.append(str(line))


def at_work(**shown: list[str]) -> Driver:
    """A Driver with one batch in flight that has three rows of each microbatch."""

    @program
    def toy(row: Any) -> Any:
        return stage(same, rowwise=False, batch_size=6)(row)

    backend = LocalBackend(toy.plan)
    rest = shown.pop("rest")
    driver = Driver(toy.plan, backend, time.time, on_line=partial(note, rest))
    driver.start()
    for key, said in shown.items():
        rows, keys = [0, 1, 2], [f"{key}{i}" for i in range(3)]
        driver.submit(
            rows,
            keys,
            describe_rows(toy.plan, rows),
            lambda parent: None,
            partial(note, said),
        )
    ready = backend.step()
    assert ready is not None
    driver.receive(ready)
    (flight,) = driver.scheduler.workers.flights.values()
    assert (flight.batch, flight.rows) == (0, 6)
    return driver


def said_by(row: int, *texts: str) -> LinesCame:
    return LinesCame(0, tuple(Line(0, row, WARNING, text) for text in texts), ())


def test_a_batch_of_two_microbatches_is_told_to_both() -> None:
    a: list[str] = []
    b: list[str] = []
    rest: list[str] = []
    driver = at_work(a=a, b=b, rest=rest)
    driver.receive(said_by(-1, "all"))
    driver.receive(said_by(4, "one"))
    driver.receive(LinesCame(0, (Line(99, 0, WARNING, "unknown"),), ()))
    assert a == ["stage same, a0 and 2 more: all"]
    assert b == ["stage same, b0 and 2 more: all", "stage same, b1: one"]
    assert rest == ["stage same: unknown"]


def test_what_is_left_out_is_said_once_when_the_microbatch_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_lines, "MOST_A_SECOND", 2)
    a: list[str] = []
    b: list[str] = []
    driver = at_work(a=a, b=b, rest=[])
    driver.receive(said_by(0, "1", "2", "3", "4"))
    driver.receive(LinesCame(0, (), ((0, 5),)))
    assert a == ["stage same, a0: 1", "stage same, a0: 2"]

    backend: Any = driver._backend
    driver.receive(backend.step())
    assert a[2:] == [
        "7 more lines that stages logged are not shown: at most 2 a second and 1000 in all, and "
        "20 a second of one worker"
    ]
    # A line that comes after the end still finds its parents; what it adds is said at the end.
    driver.lines.close([LinesCame(0, (), ((0, 1),))])
    assert [text[:12] for text in a[3:]] == ["1 more lines"]
    assert len(b) == 2


def test_whoever_takes_lines_may_raise() -> None:
    def refuse(line: StageLine) -> None:
        raise ConnectionError(line.text)

    driver = at_work(a=[], b=[], rest=[])
    driver.lines._of[0]._show = refuse
    driver.receive(said_by(-1, "all"))
    assert driver.error is None
