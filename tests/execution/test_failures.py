"""What stages return and raise: typed failures, exceptions, budgets, halving."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

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
from rayorch_prefect.errors import ParentNotCompleted
from rayorch_prefect.execution import stage_runner
from tests.execution.conftest import Notes

Runs = Callable[[Program, Iterable[Any]], dict[int, Parent]]


@pytest.fixture(params=["in-process", "ray"])
def run(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """Runs a Program in-process and on Ray; the parents by the index of their row."""
    if request.param == "in-process":
        yield lambda made, rows: {parent.index: parent for parent in run_local(made, rows)}
        return
    request.getfixturevalue("cluster")
    left: list[Engine] = []

    def on_ray(made: Program, rows: Iterable[Any]) -> dict[int, Parent]:
        engine = Engine(made)
        left.append(engine)
        return {parent.index: parent for parent in engine.__enter__().run(rows)}

    yield on_ray
    for engine in left:
        engine.__exit__(None, None, None)


SECRET = "ocr-key-0123456789"
SAID = {
    "typed": ("Odd\udcff", f"{'x' * 1990} {SECRET}"),
    "raised": ("OSError", f"no file \udce9\x00 {SECRET}"),
    "long": ("T" * 5000, "x" * 1_000_000),
}


class Telling:
    """Its worker alone has the secret, as when a stage reads it from a file."""

    def __init__(self) -> None:
        os.environ["OCR_API_KEY"] = SECRET

    def __call__(self, row: str) -> str:
        named, message = SAID[row]
        raise OSError(message) if row == "raised" else RecordFailure(named, message)


@program
def telling(row: Any) -> Any:
    return stage(Telling, rowwise=True, retry_budget=1)()(row)


def test_what_a_failure_says_is_short_writable_and_without_secrets(
    run: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCR_API_KEY", "")  # so that it ends with the test, in this process too
    stage_runner._redaction.cache_clear()
    causes = [parent.cause for _, parent in sorted(run(telling, list(SAID)).items())]
    typed, raised, long = [(cause.type, cause.message) for cause in causes if cause]
    assert typed == ("Odd\\udcff", "x" * 1990 + " ***")
    assert raised == ("OSError", "no file \\udce9\\x00 ***")
    assert (len(long[0]), len(long[1])) == (100, 2000)


class Encrypted(RecordFailure):
    """A type of its own."""


def outcomes(parents: dict[int, Parent]) -> list[str]:
    return [parents[index].outcome.value for index in sorted(parents)]


class Typed:
    """Batch-wise: returns failures in rows' places."""

    def __call__(self, rows: list[str]) -> list[Any]:
        known = {"encrypted": Encrypted("no key"), "group": GroupFailure("Spoilt", "all of it")}
        return [known.get(row, row.upper()) for row in rows]


def raising(row: str) -> str:
    """Row-wise: raises them."""
    if row == "encrypted":
        raise Encrypted("no key")
    if row == "group":
        raise GroupFailure("Spoilt", "all of it")
    return row.upper()


@pytest.mark.parametrize("kind", [Typed, raising])
def test_typed_failures_returned_and_raised(run: Runs, kind: Any) -> None:
    @program
    def typed(row: Any) -> Any:
        used = stage(kind, batch_size=4)
        return (used() if isinstance(kind, type) else used)(row)

    parents = run(typed, ["a", "encrypted", "b", "group", "c"])

    assert outcomes(parents) == ["COMPLETED", "FAILED", "COMPLETED", "FAILED", "COMPLETED"]
    assert [parents[i].value() for i in (0, 2, 4)] == ["A", "B", "C"]
    encrypted, group = parents[1].cause, parents[3].cause
    assert encrypted
    assert group
    assert (encrypted.kind.value, encrypted.type) == ("RecordFailure", "Encrypted")
    assert (encrypted.message, encrypted.attempts) == ("no key", 1)
    assert (group.kind.value, group.type, group.message) == ("GroupFailure", "Spoilt", "all of it")
    with pytest.raises(ParentNotCompleted, match=r"row 1 is FAILED.*Encrypted.*no key"):
        parents[1].value()


def test_a_group_failure_bars_its_siblings_and_a_record_failure_does_not(run: Runs) -> None:
    def split(n: int) -> list[tuple[int, int]]:
        return [(n, i) for i in range(abs(n))]

    def work(child: tuple[int, int]) -> int:
        if child == (5, 2):
            raise GroupFailure("Spoilt", "child 2")
        if child == (-4, 1):
            raise RecordFailure("Bad", "child 1")
        return child[1]

    @program
    def grouped(n: Any) -> Any:
        worked = stage(work, batch_size=3)(F.expand(stage(split)(n), domain="child"))
        return F.reduce(worked, on_failure="skip")

    parents = run(grouped, [5, -4, 3])

    assert outcomes(parents) == ["FAILED", "COMPLETED", "COMPLETED"]
    assert parents[0].cause
    assert (parents[0].cause.type, parents[0].cause.child) == ("Spoilt", 2)
    assert (parents[1].value(), parents[1].value().missing) == ([0, 2, 3], (1,))
    assert parents[1].value().ordinals == (0, 2, 3)
    assert [(gap.domain, gap.path) for gap in parents[1].gaps] == [("child", (1,))]
    assert parents[2].value() == [0, 1, 2]


# -- attempts -----------------------------------------------------------------------------------


def culprit_in_batch(notes: Notes, budget: int) -> Program:
    class Batch:
        def __call__(self, rows: list[int]) -> list[int]:
            notes.add(rows)
            if 5 in rows:
                raise KeyError(f"no {5}")
            return [row * 10 for row in rows]

    @program
    def batchwise(row: Any) -> Any:
        return stage(Batch, batch_size=8, retry_budget=budget)()(row)

    return batchwise


def test_a_batch_that_raises_is_halved_until_the_culprit_is_alone(run: Runs, notes: Notes) -> None:
    parents = run(culprit_in_batch(notes, 3), range(8))

    assert outcomes(parents) == ["FAILED" if i == 5 else "COMPLETED" for i in range(8)]
    assert [parents[i].value() for i in range(8) if i != 5] == [0, 10, 20, 30, 40, 60, 70]
    cause = parents[5].cause
    assert cause
    assert (cause.kind.value, cause.type, cause.attempts) == ("AttemptsExhausted", "KeyError", 3)
    assert (cause.message, cause.stage) == ("'no 5'", "Batch")
    tried = [line for line in notes.lines() if "5" in line]
    # Batches of several are charged to nobody; alone it has its three tries.
    assert tried == [
        "[0, 1, 2, 3, 4, 5, 6, 7]", "[4, 5, 6, 7]", "[4, 5]", "[5]", "[5]", "[5]"
    ]  # fmt: skip


def test_a_budget_of_one_is_never_tried_again(run: Runs, notes: Notes) -> None:
    parents = run(culprit_in_batch(notes, 1), range(4, 8))
    assert parents[1].cause
    assert parents[1].cause.attempts == 1
    assert notes.lines().count("[5]") == 1


def test_a_row_that_raises_is_its_own_attempt(run: Runs, notes: Notes) -> None:
    def flaky(row: int) -> int:
        if row == 1 and notes.first_time("flaky"):
            raise OSError("once")
        notes.add(f"did {row}")
        if row == 2:
            raise ValueError("always")
        return row

    @program
    def rowwise(row: Any) -> Any:
        return stage(flaky, batch_size=4)(row)

    parents = run(rowwise, range(4))

    assert outcomes(parents) == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert [parents[i].attempts for i in range(4)] == [1, 2, 3, 1]
    assert parents[2].cause
    assert (parents[2].cause.type, parents[2].cause.message) == ("ValueError", "always")
    # The others of the batch commit: they run once.
    did = sorted(line for line in notes.lines() if line.startswith("did"))
    assert did == ["did 0", "did 1", "did 2", "did 2", "did 2", "did 3"]


ODD = {1: "SystemExit", 4: "CancelledError", 7: "StopIteration", 10: "MemoryError"}


def test_odd_exceptions_do_not_end_the_worker(run: Runs) -> None:
    """One of them in each batch of three."""

    def odd(row: int) -> int:
        import asyncio
        import builtins

        if row in ODD:
            raise getattr(builtins, ODD[row], asyncio.CancelledError)("odd")
        return row

    @program
    def odds(row: Any) -> Any:
        return stage(odd, batch_size=3, retry_budget=2)(row)

    parents = run(odds, range(12))

    assert outcomes(parents) == ["FAILED" if i in ODD else "COMPLETED" for i in range(12)]
    for row, error in ODD.items():
        cause = parents[row].cause
        assert cause
        assert (cause.kind.value, cause.type) == ("AttemptsExhausted", error)


def test_a_typed_failure_raised_for_a_batch_of_several_is_an_attempt(run: Runs) -> None:
    class Raising:
        def __call__(self, rows: list[int]) -> list[int]:
            if 2 in rows:
                raise RecordFailure("Two", "in the batch")
            return rows

    @program
    def raised(row: Any) -> Any:
        return stage(Raising, batch_size=4)()(row)

    parents = run(raised, range(4))

    assert outcomes(parents) == ["COMPLETED", "COMPLETED", "FAILED", "COMPLETED"]
    assert parents[2].cause
    # Alone in its batch it counts as what it is.
    assert (parents[2].cause.kind.value, parents[2].cause.type) == ("RecordFailure", "Two")


@pytest.mark.filterwarnings("error")
def test_an_async_stage(run: Runs) -> None:
    async def slow(row: int) -> int:
        import asyncio

        await asyncio.sleep(0.001)
        if row == 1:
            raise RecordFailure("One", "")
        return row + 1

    from functools import partial

    async def added(other: int, row: int) -> int:
        return row + other

    @program
    def awaited(row: Any) -> Any:
        return stage(partial(added, 10))(stage(slow, batch_size=2)(row))

    parents = run(awaited, range(4))
    gc.collect()  # a loop left open would say so here
    assert outcomes(parents) == ["COMPLETED", "FAILED", "COMPLETED", "COMPLETED"]
    assert [parents[i].value() for i in (0, 2, 3)] == [11, 13, 14]
