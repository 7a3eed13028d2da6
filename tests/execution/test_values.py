"""Values, order and where the bytes go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import ray

from rayorch_prefect import Engine, F, Parent, ParentOutcome, program, run_local, stage
from rayorch_prefect.execution.codec import LARGE_CHUNK
from rayorch_prefect.execution.messages import ChunkAddress
from rayorch_prefect.testing import by_index
from tests.execution.conftest import eventually
from tests.execution.programs import ROWS, everything, expected, shown


def outputs_by_row(parents: Iterable[Parent]) -> list[Any]:
    """The outputs in the order of the rows; each row once."""
    found = sorted(((parent.index, parent) for parent in parents), key=lambda pair: pair[0])
    assert [index for index, _ in found] == list(range(len(ROWS)))
    assert {parent.outcome for _, parent in found} == {ParentOutcome.COMPLETED}
    return [shown(parent.value()) for _, parent in found]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_every_operation_in_process(batch_size: int) -> None:
    wanted = [expected(row) for row in ROWS]
    made = everything(batch_size)

    assert outputs_by_row(run_local(made, ROWS)) == wanted
    for seed in range(8):
        lost = 0.2 if seed % 2 else 0.0
        parents = by_index(made, ROWS, seed=seed, losses=lost)
        assert [parent.index for parent in parents] == list(range(len(ROWS)))
        assert outputs_by_row(parents) == wanted


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 7, 64])
def test_every_operation_on_ray(cluster: str, batch_size: int) -> None:
    with Engine(everything(batch_size)) as engine:
        parents = list(engine.run(ROWS))
        assert outputs_by_row(parents) == [expected(row) for row in ROWS]
        eventually(lambda: len(stored(engine)) == 0)

    by_index = {parent.index: parent for parent in parents}
    children = {i: row["n"] * 2 + sum(j % 3 for j in range(row["n"])) for i, row in enumerate(ROWS)}
    assert {i: parent.children for i, parent in by_index.items()} == children
    assert [gap.path for gap in by_index[0].gaps] == [(3,)]
    assert by_index[1].gaps == ()


# -- large values ------------------------------------------------------------------------------

MEGABYTES = 3_000_000


class Render:
    def __call__(self, sizes: list[int]) -> list[list[Any]]:
        return [[self.page(size, i) for i in range(3)] for size in sizes]

    def page(self, size: int, i: int) -> Any:
        pixels = np.full(size, i, dtype=np.uint8)
        grid = np.asfortranarray(np.arange(size // 8, dtype=np.float64).reshape(2, -1))
        nested = {"empty": np.zeros(0), "grid": grid, "strided": pixels[::2]}
        return {"pixels": pixels, "raw": bytes([i]) * size, "nested": [nested, {"i": i}]}


class Look:
    """Checks on the worker what arrived, and passes it on."""

    def __call__(self, pages: list[Any]) -> list[Any]:
        for page in pages:
            size = len(page["pixels"])
            nested, plain = page["nested"]
            i = plain["i"]
            assert page["raw"] == bytes([i]) * size
            assert page["pixels"].max(initial=i) == i
            assert nested["grid"].flags.f_contiguous
            assert nested["grid"][1, -1] == size // 8 - 1
            assert len(nested["strided"]) == (size + 1) // 2
        return pages


@program
def rendered(size: Any) -> Any:
    pages = F.expand(stage(Render, batch_size=2)()(size), domain="page")
    return F.reduce(stage(Look, batch_size=4)()(pages))


def stored(engine: Engine) -> list[Any]:
    """What the driver keeps: the data of each live chunk."""
    assert engine._driver is not None
    return [block.data for block in engine._driver.blocks._blocks if block is not None]


def used_plasma() -> float:
    total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return total["object_store_memory"] - free.get("object_store_memory", 0.0)


def test_large_values_stay_out_of_the_driver_and_are_let_go(cluster: str) -> None:
    kept: list[Any] = []
    before = used_plasma()
    with Engine(rendered) as engine:

        def look(parent: Parent | BaseException) -> None:
            kept.append((parent, stored(engine)))  # on the Engine's thread, before its release

        engine.submit([MEGABYTES, MEGABYTES // 2], on_parent=look)
        eventually(lambda: len(kept) == 2, 60)

        for parent, data in kept:
            check_rendered(parent, data)
        eventually(lambda: stored(engine) == [])
        assert used_plasma() > before
        while kept:
            kept.pop()
        parent = data = None
        eventually(lambda: used_plasma() <= before + LARGE_CHUNK)


def check_rendered(parent: Parent, data: list[Any]) -> None:
    assert data
    assert all(isinstance(one, ChunkAddress) for one in data if not is_small(one))
    assert all(isinstance(chunk, ChunkAddress) for chunk in parent.require_payload().chunks)
    value = parent.value()
    assert [page["nested"][1]["i"] for page in value] == [0, 1, 2]
    assert len(value[2]["raw"]) == parent.row


def is_small(data: Any) -> bool:
    return isinstance(data, bytes) and len(data) <= LARGE_CHUNK


def test_a_large_source_row_is_stored_apart(cluster: str) -> None:
    @program
    def doubled(row: Any) -> Any:
        return stage(lambda array: array * 2)(row)

    rows = [np.ones(200_000), np.ones(3)]
    with Engine(doubled) as engine:
        values = {parent.index: parent.value() for parent in engine.run(rows)}
        eventually(lambda: stored(engine) == [])
    assert values[0].sum() == 400_000
    assert values[1].sum() == 6


def test_sizes_around_the_bound(cluster: str) -> None:
    @program
    def same(row: Any) -> Any:
        return stage(lambda value: value, batch_size=3)(row)

    sizes = [0, LARGE_CHUNK - 100, LARGE_CHUNK - 30, LARGE_CHUNK, LARGE_CHUNK + 1, 5]
    with Engine(same) as engine:
        for make in (bytes, lambda size: np.zeros(size, np.uint8).tobytes(), bytearray):
            found = {parent.index: len(parent.value()) for parent in engine.run(map(make, sizes))}
            assert found == dict(enumerate(sizes))
