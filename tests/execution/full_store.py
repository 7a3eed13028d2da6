"""A run on a Ray of its own whose memory holds 100 MB and whose disk counts as full.

Prints a JSON line a parent: [program, row, outcome, cause or value].
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import ray

from rayorch_prefect import Engine, F, ParentOutcome, Program, program, stage

MB = 1_000_000
STORE = 100 * MB


def make(megabytes: int) -> Any:
    return np.ones(megabytes * MB, np.uint8)


class Make:
    def __call__(self, rows: list[int]) -> list[Any]:
        return [make(row) if row > 50 else bytes(row * MB) for row in rows]


def many(megabytes: int) -> list[Any]:
    return [make(1) for _ in range(megabytes)]


def length(value: Any) -> int:
    return len(value)


@program
def by_row(row: Any) -> Any:
    return stage(length)(stage(make)(row))


@program
def by_batch(row: Any) -> Any:
    return stage(length)(stage(Make, batch_size=8, retry_budget=2)()(row))


@program
def expanded(row: Any) -> Any:
    return F.reduce(stage(length)(F.expand(stage(many)(row), domain="part")))


@program
def given(row: Any) -> Any:
    return stage(length)(row)


@program
def given_parts(row: Any) -> Any:
    return F.reduce(stage(length)(F.expand(row, domain="part")))


def told(made: Program, rows: list[Any]) -> None:
    with Engine(made) as engine:
        for parent in engine.run(rows):
            done = parent.outcome is ParentOutcome.COMPLETED
            said = parent.value() if done else str(parent.cause)
            print(json.dumps([made.plan.name, parent.index, parent.outcome.value, said]))
            del parent


if __name__ == "__main__":
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=STORE,
        log_to_driver=False,
        _system_config={"local_fs_capacity_threshold": 0.0001},
    )
    told(by_row, [1, 200, 2])
    told(by_batch, [1, 200, 2])
    told(expanded, [1, 200, 2])
    told(given, [bytes(MB), bytes(200 * MB), bytes(2 * MB)])
    told(given_parts, [[bytes(MB)] * 2, [b"", bytes(200 * MB), b"x"], [bytes(2 * MB)]])
    sys.stdout.flush()
