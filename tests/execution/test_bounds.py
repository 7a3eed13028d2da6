"""Bounds on pending values: outputs stay the same, memory stays small, large values stay away."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, program, run_local, stage
from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution.messages import RowsReply
from rayorch_prefect.execution.ray_backend import RayBackend
from tests.execution.programs import ROWS, everything, expected, shown

MIB = 1 << 20
WANTED = {row: expected(source) for row, source in enumerate(ROWS)}


@pytest.mark.parametrize("most", [1, 7, 64, None])
@pytest.mark.parametrize("seed", range(2))
def test_the_outputs_are_the_same_whatever_the_bound(most: int | None, seed: int) -> None:
    """With lost workers and values, random ends of batches, and stages that fail for good."""
    made = everything(1 + 3 * seed)
    chances: dict[str, Any] = {"seed": seed, "losses": 0.1, "lost_values": 0.1}
    bounds: list[dict[str, Any]] = [{"max_pending": most}]
    if most is not None:
        bounds.append({"max_pending_mb": most * 100 / MIB})
    for bound in bounds:
        parents = run_local(made, ROWS, **chances, **bound)
        assert {parent.index: shown(parent.value()) for parent in parents} == WANTED


@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_on_ray_too(cluster: str, most: int) -> None:
    with Engine(everything(4), max_pending=most) as engine:
        assert engine.bound.values == most
        assert engine.bound.bytes, "by default a share of the object store"
        found = {parent.index: shown(parent.value()) for parent in engine.run(ROWS)}
        assert found == WANTED
        assert engine.metrics.pending_mb == 0
        assert engine.metrics.peak_pending_mb > 0


@pytest.mark.parametrize(
    "option", [{"max_pending": 0}, {"max_pending_mb": 0}, {"max_pending_mb": "much"}]
)
def test_a_bound_that_will_not_do_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Engine(everything(1), **option)


def sized(size: int) -> Any:
    return np.full(size, 7, np.uint8)


@program
def sizes(size: Any) -> Any:
    return stage(lambda value: int(value.sum()))(stage(sized)(size))


def test_a_large_value_after_small_ones_is_collected(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing large is in any reply: it goes to the object store without the driver."""
    collected: list[int] = []
    collect = RayBackend._collect

    def counted(self: RayBackend, worker: int, batch: int, reply: RowsReply) -> None:
        collected.append(reply.left_behind)
        assert all(chunk.data is None for output in reply.outputs for chunk in output.chunks)
        collect(self, worker, batch, reply)

    monkeypatch.setattr(RayBackend, "_collect", counted)
    rows = [1, 2, 300_000, 400_000, 3, 4, 500_000]
    with Engine(sizes) as engine:
        found = {parent.row: parent.value() for parent in engine.run(rows)}
    assert found == {row: 7 * row for row in rows}
    assert collected


@pytest.mark.slow
def test_a_document_larger_than_the_object_store_is_not_spilled() -> None:
    """320 MB of pages go through 100 MB of memory."""
    command = [sys.executable, "-m", "tests.execution.small_store"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=True, env={**os.environ}
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["values"] == [[40, 40 * 8_000_000], [3, 3 * 8_000_000]]
    assert said["spilled"] == 0
    assert said["primary"] <= 1.2 * said["bound"]
