"""Values beyond 2 GiB, and beyond what Ray's object store and its disk hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, ParentOutcome, program, stage

MB = 1_000_000
LARGE = 2**31 + 10


@pytest.fixture(scope="module")
def ends() -> dict[str, list[tuple[str, Any]]]:
    """Outcome, and value or cause, of each row by program, on a Ray whose store is full."""
    command = [sys.executable, "-m", "tests.execution.full_store"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=True, env={**os.environ}
    )
    found: dict[str, dict[int, tuple[str, Any]]] = {}
    for line in ended.stdout.splitlines():
        if line.startswith('["'):
            name, row, outcome, said = json.loads(line)
            found.setdefault(name, {})[row] = (outcome, said)
    return {name: [rows[row] for row in sorted(rows)] for name, rows in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stage_name"), [("by_row", "make"), ("by_batch", "Make"), ("expanded", "many")]
)
def test_what_the_store_does_not_take_fails_its_own_row_at_the_stage_that_made_it(
    ends: dict[str, list[tuple[str, Any]]], name: str, stage_name: str
) -> None:
    first, large, last = ends[name]
    assert (first[0], last[0]) == ("COMPLETED", "COMPLETED")
    assert large[0] == "FAILED"
    assert f"AttemptsExhausted[ObjectStoreFull] in stage {stage_name} at source" in large[1]
    assert "the 2000" in large[1]
    assert "bytes that it returned could not be stored" in large[1]
    assert "give Ray more object_store_memory" in large[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["given", "given_parts"])
def test_a_given_row_that_the_store_does_not_take_is_refused_alone(
    ends: dict[str, list[tuple[str, Any]]], name: str
) -> None:
    first, large, last = ends[name]
    assert (first[0], last[0]) == ("COMPLETED", "COMPLETED")
    assert large[0] == "FAILED"
    assert "bytes that could not be stored" in large[1]
    assert "give Ray more object_store_memory" in large[1]


def enormous(kind: str) -> Any:
    if kind == "numpy":
        return np.full(LARGE, 7, np.uint8)
    return bytes(LARGE - 1) + b"\x07" if kind == "bytes" else b"\x07"


def ends_of(value: Any) -> tuple[int, int]:
    return len(value), int(value[-1])


@program
def beyond_two_gib(kind: Any) -> Any:
    return stage(ends_of)(stage(enormous)(kind))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numpy", "bytes"])
def test_a_value_above_2_gib_goes_from_stage_to_stage(cluster: str, kind: str) -> None:
    """Much larger than this Ray's memory: it goes through the disk."""
    with Engine(beyond_two_gib) as engine:
        parents = {parent.row: parent for parent in engine.run([kind, "small"])}
    assert {parent.outcome for parent in parents.values()} == {ParentOutcome.COMPLETED}
    assert parents[kind].value() == (LARGE, 7)
    assert parents["small"].value() == (1, 7)
