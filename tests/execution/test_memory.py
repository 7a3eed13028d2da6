"""Memory limits on real workers."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, F, Parent, Program, program, run_local, stage
from rayorch_prefect.execution.memory import MIB, MemoryLimit
from tests.execution.conftest import Notes

LIMIT_MB = 256

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="RLIMIT_DATA acts on Linux only"
)


class Eater:
    """Row 5 of all takes memory as `how` does it; large values come in and go out."""

    def __init__(self, notes: Notes, how: str) -> None:
        self.notes = notes
        self.how = how

    def __call__(self, row: int) -> Any:
        self.notes.add(f"{os.getpid()} {row}")
        if row == 5:
            ate = [np.ones(16 * MIB // 8) for _ in range(100)]
            return len(ate)
        return np.full(8 * MIB, row, dtype=np.uint8)


class NativeEater(Eater):
    """As a library that aborts when it gets no memory."""

    def __call__(self, row: int) -> Any:
        if row == 5:
            self.notes.add(f"{os.getpid()} {row}")
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            while (at := libc.malloc(ctypes.c_size_t(16 * MIB))) is not None:
                ctypes.memset(at, 1, 16 * MIB)
            libc.abort()
        return super().__call__(row)


def first(block: Any) -> int:
    return int(block[0])


def limited(eater: type[Eater], notes: Notes) -> Program:
    @program
    def eats(source: Any) -> Any:
        work = stage(eater, rowwise=True, batch_size=4, retry_budget=2, memory_limit_mb=LIMIT_MB)(
            notes, ""
        )
        read = stage(first, memory_limit_mb=LIMIT_MB)
        return F.reduce(read(work(F.expand(source, domain="child"))), on_failure="skip")

    return eats


def run(made: Program) -> dict[int, Parent]:
    with Engine(made) as engine:
        return {parent.index: parent for parent in engine.run([[4, 5, 6, 7], [1, 2, 3]])}


def test_a_row_that_python_refuses_memory_is_that_rows_attempt(cluster: str, notes: Notes) -> None:
    parents = run(limited(Eater, notes))
    assert list(parents[0].value()) == [4, 6, 7]
    assert list(parents[1].value()) == [1, 2, 3]
    (gap,) = parents[0].gaps
    assert (gap.path, gap.cause.type, gap.cause.attempts) == ((1,), "MemoryError", 2)
    # The worker lives on, and large values are returned all the same.
    assert len({line.split()[0] for line in notes.lines()}) == 1


@pytest.mark.slow
def test_native_code_that_aborts_costs_its_row_alone(cluster: str, notes: Notes) -> None:
    parents = run(limited(NativeEater, notes))
    assert list(parents[0].value()) == [4, 6, 7]
    assert list(parents[1].value()) == [1, 2, 3]
    (gap,) = parents[0].gaps
    assert (gap.path, gap.cause.type, gap.cause.attempts) == ((1,), "WorkerDied", 2)
    assert "memory_limit_mb=256" in gap.cause.message


def test_the_limit_holds_inside_only() -> None:
    limit = MemoryLimit(64)
    with limit.held(), pytest.raises(MemoryError):
        np.ones(100 * MIB // 8)
    assert len(np.ones(100 * MIB // 8))


def test_a_run_in_this_process_is_not_limited(notes: Notes) -> None:
    def large(row: int) -> int:
        return len(np.ones(300 * MIB // 8)) * row

    @program
    def takes(source: Any) -> Any:
        return stage(large, memory_limit_mb=LIMIT_MB)(source)

    (parent,) = run_local(takes, [0])
    assert parent.value() == 0
