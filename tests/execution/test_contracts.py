"""Stages that break their contract: named, never tried again, nothing of the batch committed."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, F, Parent, Program, RecordFailure, program, run_local, stage
from tests.execution.conftest import Notes

# deed: (stage, expected, received)
BREACHES = {
    "short": ("Lists", "1 results", "0 results"),
    "long": ("Lists", "1 results", "2 results"),
    "generator": ("Lists", "a list of 1 results", "a generator (return a list"),
    "a text": ("Lists", "a list of 1 results", "a str of length 1"),
    "nothing": ("Lists", "a list of 1 results", "a NoneType"),
    "a lock": (
        "Lists",
        "values that can be pickled",
        "a dict of length 1: TypeError: cannot pickle",
    ),
    "one list": ("Pairs", "a tuple of 2 lists", "a list of length 1"),
    "three lists": ("Pairs", "a tuple of 2 lists", "a tuple of length 3"),
    "unequal": ("Pairs", "lists of equal lengths for Domain pair", "2 and 1"),
    "no list of children": ("children", "a list of children", "an int"),
    "a failed child": ("children", "a list of children", "a failure among them"),
    "a mask of 1": ("mask", "a boolean, as it is used as a mask", "an int"),
    "a mask of None": (
        "mask",
        "a boolean, as it is used as a mask",
        "a NoneType",
    ),
}
GOOD = "good"


def broken(notes: Notes) -> Program:
    """Every stage misbehaves on the row that names its deed."""

    class Lists:
        def __call__(self, deeds: list[str]) -> Any:
            notes.add(deeds[0])
            match deeds[0]:
                case "short":
                    return []
                case "long":
                    return [1, 2]
                case "generator":
                    return (deed for deed in deeds)
                case "a text":
                    return "x"
                case "nothing":
                    return None
                case "a lock":
                    return [{"inside": threading.Lock()}]
                case _:
                    return list(deeds)

    class Pairs:
        def __call__(self, deeds: list[str]) -> Any:
            match deeds[0]:
                case "one list":
                    return [([1], [2])]
                case "three lists":
                    return [[1]], [[2]], [[3]]
                case "unequal":
                    return [[1, 2]], [[1]]
                case _:
                    return [[1, 2]], [[3, 4]]

    def children(deed: str) -> Any:
        match deed:
            case "no list of children":
                return 3
            case "a failed child":
                return [1, RecordFailure("Bad", "child")]
            case _:
                return (1, 2)

    def mask(deed: str) -> Any:
        return {"a mask of 1": 1, "a mask of None": None}.get(deed, np.bool_(True))

    @program
    def breaches(deed: Any) -> Any:
        listed = stage(Lists)()(deed)
        left, right = F.expand_aligned(*stage(Pairs, outputs=2)()(deed), domain="pair")
        child = F.expand(stage(children)(deed), domain="child")
        forgiven = F.reduce(child, on_failure="skip")
        return (
            listed, F.reduce(left), F.reduce(right), forgiven, F.filter(deed, stage(mask)(deed))
        )  # fmt: skip

    return breaches


@pytest.mark.parametrize("where", ["in-process", "ray"])
def test_breaches(where: str, notes: Notes, request: pytest.FixtureRequest) -> None:
    rows = [GOOD, *BREACHES, GOOD]
    if where == "ray":
        request.getfixturevalue("cluster")
        with Engine(broken(notes)) as engine:
            parents = {parent.index: parent for parent in engine.run(rows)}
            retries = engine.metrics.retries
            values = [parents[index].value() for index in (0, len(rows) - 1)]
    else:
        parents = {parent.index: parent for parent in run_local(broken(notes), rows)}
        retries = 0
        values = [parents[index].value() for index in (0, len(rows) - 1)]

    for index, deed in enumerate(BREACHES, 1):
        check_breach(parents[index], deed)
    assert values == [(GOOD, [1, 2], [3, 4], [1, 2], GOOD)] * 2
    assert retries == 0
    called = Counter(notes.lines())
    assert called[GOOD] == 2
    # Never twice; not at all where another stage's breach had doomed the parent before.
    assert all(called[deed] <= 1 for deed in BREACHES)


def check_breach(parent: Parent, deed: str) -> None:
    name, expected, received = BREACHES[deed]
    cause = parent.cause
    assert cause, deed
    assert (cause.kind.value, cause.stage, cause.attempts) == ("ContractError", name, 1), deed
    assert f"in stage {name}" in str(cause), deed
    assert f"expected {expected}" in cause.message, (deed, cause.message)
    assert f"received {received}" in cause.message, (deed, cause.message)


def test_nothing_of_the_batch_is_committed_and_other_batches_go_on() -> None:
    class Five:
        def __call__(self, rows: list[int]) -> list[int]:
            return rows[:5] if 3 in rows else rows

    @program
    def five(n: Any) -> Any:
        children = F.expand(stage(lambda n: list(range(n, n + 3)), batch_size=9)(n), domain="child")
        return F.reduce(stage(Five, batch_size=6)()(children))

    parents = {parent.index: parent for parent in run_local(five, [3, 6, 9, 12])}

    assert [parents[i].outcome.value for i in range(4)] == [*["FAILED"] * 2, *["COMPLETED"] * 2]
    for index in (0, 1):
        cause = parents[index].cause
        assert cause
        assert cause.message.count("6 results") == 1
        assert cause.message.count("5 results") == 1
    assert parents[3].value() == [12, 13, 14]


def test_the_child_at_fault_is_named_at_each_parent_of_its_batch() -> None:
    def odd(child: int) -> Any:
        return 1 if child == 5 else child % 2 == 1

    @program
    def masked(n: Any) -> Any:
        children = F.expand(stage(lambda n: [n, n + 1, n + 2], batch_size=2)(n), domain="child")
        return F.reduce(F.filter(children, stage(odd, batch_size=6)(children)))

    parents = {parent.index: parent for parent in run_local(masked, [0, 3])}

    mate, guilty = parents[0].cause, parents[1].cause
    assert guilty
    assert str(guilty) == (
        "ContractError in stage odd at child 2: expected a boolean, as it is used as a mask, "
        "received an int"
    )
    assert mate
    assert mate.message == (
        f"{guilty.message}, at child 2 of another source in the same batch: row 1"
    )


def test_rows_that_do_not_fit_the_source_port() -> None:
    @program
    def expanded(row: Any) -> Any:
        return F.reduce(stage(lambda child: str(child))(F.expand(row, domain="child")))

    parents = {parent.index: parent for parent in run_local(expanded, [[1, 2], 7, []])}

    assert parents[0].value() == ["1", "2"]
    assert parents[2].value() == []
    assert parents[1].cause
    assert parents[1].cause.kind.value == "ContractError"
    assert "an int instead of a list of children in row 1" in parents[1].cause.message
