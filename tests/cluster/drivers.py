"""Drivers on a cluster that RAY_ADDRESS names; each is a process of its own.

`python -m tests.cluster.drivers spread NOTES`, `... hold`, `... wait`,
`... lose` `... lose_outputs`, `... lose_idle` or `... limit`.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray

from rayorch_prefect import Engine, F, Program, program, stage
from rayorch_prefect.errors import ClusterError
from rayorch_prefect.execution import engine as engine_module

LARGE = 300_000


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def split(row: int) -> list[Any]:
    return [(this_node(), np.full(LARGE, row * 10 + child)) for child in range(3)]


def far(child: Any) -> tuple[str, str, int]:
    made_on, numbers = child
    return made_on, this_node(), int(numbers.sum())


def either(children: Any) -> tuple[list[Any], str]:
    return list(children), this_node()


def note_node(notes: str) -> None:
    with Path(notes).open("a") as file:
        file.write(f"{this_node()}\n")


def spread_over(notes: str) -> Program:
    """Pages are made on the first node and read on the second; the end is on both."""

    @program
    def spreads(row: Any) -> Any:
        near = stage(split, num_cpus=0, resources={"first": 1})
        there = stage(far, num_cpus=0, resources={"second": 1}, label_selector={"region": "far"})
        # One CPU a node, so one of its two workers is on each.
        both = stage(either, num_cpus=1, replicas=2, node_setup=partial(note_node, notes))
        return both(F.reduce(there(F.expand(near(row), domain="page"))))

    return spreads


def values(engine: Engine, rows: int) -> list[Any]:
    found = {parent.index: parent.value() for parent in engine.run(range(rows))}
    return [found[index] for index in range(rows)]


def spread(notes: str) -> None:
    """On a Ray that the Engine connects to, then on one that is connected already."""
    with Engine(spread_over(notes)) as engine:
        first = values(engine, 6)
    connection_ended = not ray.is_initialized()

    ray.init(address=os.environ["RAY_ADDRESS"], logging_level=logging.WARNING)
    alive: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = {node["NodeID"]: node["Resources"] for node in alive if node["Alive"]}
    with Engine(spread_over(notes)) as engine:
        again = values(engine, 2)
    still_there = ray.get(ray.remote(num_cpus=1)(this_node).remote())
    show(
        first=first,
        connection_ended=connection_ended,
        nodes={
            name: node for node, has in nodes.items() for name in ("first", "second") if name in has
        },
        again=again,
        still_there=still_there,
    )


def holding() -> Program:
    @program
    def holds(row: Any) -> Any:
        return stage(far, num_cpus=0, resources={"second": 1})(row)

    return holds


def hold() -> None:
    """Holds the second node's resource until standard input is closed."""
    with Engine(holding()):
        show(held=True)
        sys.stdin.read()


def wait() -> None:
    """Wants what another job holds: gives up first, then waits for it."""
    engine_module.WAIT_NOTICE_S = 1.0
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        Engine(holding(), start_timeout=2.5).__enter__()
    except ClusterError as error:
        show(error=str(error), connected=ray.is_initialized())
    with Engine(holding(), start_timeout=100) as engine:
        (parent,) = engine.run([("nowhere", np.ones(3))])
        show(value=parent.value())


def stuck(row: int) -> int:
    if row == 2:
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock
    return row


def limit() -> None:
    """A row on the second node never ends, and holds the interpreter's lock there."""

    @program
    def sticks(row: Any) -> Any:
        far_stage = stage(stuck, batch_size=5, resources={"second": 1}, row_limit_s=2)
        return far_stage.options(retry_budget=2)(row)

    with Engine(sticks) as engine:
        parents = {parent.index: parent for parent in engine.run(range(5))}
        show(
            values=[parents[row].value() for row in (0, 1, 3, 4)],
            cause=str(parents[2].cause),
            deadlines=engine.metrics.deadlines_passed,
        )


def slow_far(child: Any) -> tuple[int, int]:
    time.sleep(0.3)
    return int(child[1][0]), int(child[1].sum())


def made_far() -> Program:
    """Pages are made on the second node and read, one after another, on the first."""

    @program
    def pages(row: Any) -> Any:
        there = stage(split, num_cpus=0, resources={"second": 1})
        here = stage(slow_far, num_cpus=0, resources={"first": 1}, batch_size=1)
        return F.reduce(here(F.expand(there(row), domain="page")))

    return pages


def lose() -> None:
    """Tells of its first parent, and at the end what all were and what was made again."""
    with Engine(made_far()) as engine:
        found: dict[int, Any] = {}
        for parent in engine.run(range(8)):
            found[parent.index] = parent.value() if parent.cause is None else str(parent.cause)
            if len(found) == 1:
                show(first=parent.index)
        metrics = engine.metrics
    show(
        found=[found[index] for index in range(8)],
        lost=metrics.lost_blocks,
        remade=metrics.remade_rows,
        workers=metrics.workers_lost,
        retries=metrics.retries,
    )


def made_whole_far() -> Program:
    @program
    def outputs(row: Any) -> Any:
        return stage(large, num_cpus=0, resources={"second": 1})(row)

    return outputs


def large(row: int) -> Any:
    return np.full(LARGE, row)


def total(value: Any) -> int:
    return int(value.sum())


def lose_outputs() -> None:
    """Waits for a line with all outputs made and none read; then has each read by an applier."""
    with Engine(made_whole_far()) as engine:
        parents = sorted(engine.run(range(1, 5)), key=lambda parent: parent.index)
        show(made=len(parents))
        sys.stdin.readline()
        read = [engine.apply(total, parent).result() for parent in parents]
        show(read=read, lost=engine.metrics.lost_blocks)


def lose_idle() -> None:
    """Waits for a line with four workers that have had nothing to do; then has four rows run."""

    @program
    def outputs(row: Any) -> Any:
        return stage(large, num_cpus=0, resources={"second": 0.2}, replicas=4)(row)

    with Engine(outputs) as engine:
        show(ready=True)
        sys.stdin.readline()
        end = time.monotonic() + 60
        while engine.metrics.workers_lost < 4 and time.monotonic() < end:
            time.sleep(0.1)
        read = [total(value) for value in values(engine, 4)]
        show(read=read, workers=engine.metrics.workers_lost)


def show(**found: Any) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    commands: dict[str, Callable[..., None]] = {
        "spread": spread,
        "hold": hold,
        "wait": wait,
        "limit": limit,
        "lose": lose,
        "lose_outputs": lose_outputs,
        "lose_idle": lose_idle,
    }
    commands[sys.argv[1]](*sys.argv[2:])
