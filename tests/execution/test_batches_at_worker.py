"""Two batches at a worker: the same outcomes, and what the setting refuses."""

from __future__ import annotations

import pytest

from rayorch_prefect import (
    Engine,
    F,
    GroupFailure,
    ParentOutcome,
    Program,
    program,
    run_local,
    stage,
)
from rayorch_prefect.errors import ProgramError, UsageError


def spoiling() -> Program:
    """n -> its numbers, in order; a source of 5 is spoiled by its number 2."""

    def numbers(n: int) -> list[tuple[int, int]]:
        return [(n, i) for i in range(n)]

    def number(pair: tuple[int, int]) -> int:
        if pair == (5, 2):
            raise GroupFailure("Spoiled")
        return pair[1]

    @program(version="1")
    def listing(source):  # type: ignore[no-untyped-def]
        children = F.expand(stage(numbers)(source), domain="number")
        return F.reduce(stage(number, batch_size=2, replicas=2)(children))

    return listing


@pytest.mark.usefixtures("cluster")
def test_outcomes_are_those_of_one_batch_at_a_worker() -> None:
    rows = [7, 5, 1, 0, 4, 5, 9]
    with Engine(spoiling(), batches_at_worker=2) as engine:
        parents = sorted(engine.run(rows), key=lambda parent: parent.index)
    ended = [parent.outcome for parent in parents]
    assert ended == [ParentOutcome.FAILED if n == 5 else ParentOutcome.COMPLETED for n in rows]
    for parent in parents:
        if parent.cause is None:
            assert parent.value() == list(range(parent.row))
        else:
            assert parent.cause.type == "Spoiled"


def test_one_or_two_batches() -> None:
    with pytest.raises(UsageError, match="1 or 2, not 3"):
        Engine(spoiling(), batches_at_worker=3)


def test_a_function_is_no_program() -> None:
    with pytest.raises(ProgramError, match="len is not a Program: declare it with @program"):
        Engine(len)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="@program"):
        list(run_local(len, [1]))  # type: ignore[arg-type]
