"""Ratios to a reference loop, held against those saved in `ratios.json`.

The reference runs right before each round of what is measured, so that another machine slows both;
the least CPU time of each is taken, as neighbours only ever add to it. Saved are ratios, never
seconds.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

SAVED = Path(__file__).with_name("ratios.json")
ROUNDS = 9
REGRESSION = 1.25
"""A ratio this many times the saved one is a regression; noise stays below."""

Held: TypeAlias = Callable[[Callable[[], Any], Callable[[Any], int]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--save-ratios", action="store_true", help="save this run's ratios")


def reference() -> int:
    """Work of the interpreter: calls, dictionaries, bytes, integers."""
    table: dict[int, tuple[int, int]] = {}
    flags = bytearray(4096)
    total = 0
    for number in range(150_000):
        table[number & 4095] = (number, total)
        flags[number & 4095] = number & 255
        total += len(table) + table[(number * 7) & 4095 if number > 4096 else number & 4095][0]
    return total


@pytest.fixture
def held(benchmark: Any, request: pytest.FixtureRequest) -> Held:
    """Measure `work(made())` and compare its ratio with the saved one of this test."""

    def hold(make: Callable[[], Any], work: Callable[[Any], int]) -> None:
        references: list[float] = []
        own: list[float] = []

        def before_each() -> tuple[tuple[Any], dict[str, Any]]:
            gc.collect()
            begin = time.process_time()
            reference()
            references.append(time.process_time() - begin)
            return (make(),), {}

        def timed(made: Any) -> int:
            begin = time.process_time()
            done = work(made)
            own.append(time.process_time() - begin)
            return done

        benchmark.pedantic(timed, setup=before_each, rounds=ROUNDS, warmup_rounds=1)
        ratio = min(own) / min(references)
        benchmark.extra_info["ratio"] = round(ratio, 3)
        _compare(request, ratio)

    return hold


def _compare(request: pytest.FixtureRequest, ratio: float) -> None:
    name = request.node.name
    saved: dict[str, float] = json.loads(SAVED.read_text()) if SAVED.exists() else {}
    if request.config.getoption("--save-ratios"):
        SAVED.write_text(json.dumps({**saved, name: round(ratio, 3)}, indent=1) + "\n")
        return
    assert name in saved, f"{name} has no saved ratio: make bench-core ARGS=--save-ratios"
    slower = ratio / saved[name]
    print(f"{name}: {ratio:.2f} x the reference loop, {slower:.2f} x the saved ratio")
    assert slower <= REGRESSION, (
        f"{name} takes {ratio:.2f} x the reference loop, saved is {saved[name]:.2f}: "
        f"{slower:.2f} times as much, more than {REGRESSION}"
    )
