"""Two batches at a worker: the same outcomes, and what the setting refuses."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

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
from rayorch_prefect.execution.departure import Departures, handed_over, served_connections
from tests.execution.conftest import Notes

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="struct tcp_info is Linux's")


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
def test_outcomes_of_barred_and_of_whole_parents() -> None:
    rows = [7, 5, 1, 0, 4, 5, 9]
    with Engine(spoiling()) as engine:
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


def test_a_report_has_left_before_the_next_batch_can_end_the_process(
    cluster: str, notes: Notes
) -> None:
    """Five deaths in the first instant of a batch, each right after another was reported."""

    def deadly(row: int) -> int:
        again = not notes.first_time(row)
        if row % 3 == 1 and not again:
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    @program(version="1")
    def passing(source):  # type: ignore[no-untyped-def]
        return stage(deadly, batch_size=1)(source)

    with Engine(passing) as engine:
        parents = list(engine.run(range(15)))
        assert engine.metrics.workers_lost == 5
    assert sorted(parent.value() for parent in parents) == list(range(15))
    starts = Counter(notes.lines())
    assert starts == {str(row): 2 if row % 3 == 1 else 1 for row in range(15)}


@on_linux
def test_the_kernel_counts_what_a_server_was_given_to_send() -> None:
    with connected() as (client, accepted):
        served = list(served_connections())
        assert accepted.fileno() in served
        assert client.fileno() not in served
        before = handed_over(accepted)
        accepted.sendall(bytes(300))
        assert handed_over(accepted) - before == 300


@on_linux
def test_waiting_for_a_report_ends_when_it_has_left_or_patience_has() -> None:
    with connected() as (_, accepted):
        departures = Departures()
        assert departures.wait(patience_s=30)
        departures.expect()
        assert not departures.wait(patience_s=0.01)
        departures.expect()
        accepted.sendall(bytes(1000))
        assert departures.wait(patience_s=30)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection to a server in this process, the server's last."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        yield client, accepted
