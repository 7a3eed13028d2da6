"""The guard that says where a run stands when nothing moves."""

from __future__ import annotations

import math
import re
import time

from rayorch_prefect import program, stage
from rayorch_prefect.execution.engine import Engine
from rayorch_prefect.execution.standstill import Standstill


def test_it_speaks_after_a_while_and_then_with_growing_gaps() -> None:
    still = Standstill(300)
    still.moved(1000)
    said = [now for now in range(1000, 6001) if still.due(now, at_work=True) is not None]
    assert said == [1300, 1600, 2200, 3400, 5800]
    still.moved(6000)
    assert still.next(at_work=True) == 6300
    assert still.due(6300, at_work=True) == 300


def test_whoever_has_nothing_to_do_does_not_stand_still() -> None:
    still = Standstill(300)
    assert still.next(at_work=True) == math.inf
    still.moved(1000)
    assert still.next(at_work=False) == math.inf
    assert still.due(5000, at_work=False) is None


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@program
def sleeping(source: object) -> object:
    return stage(slow, batch_size=2)(source)


def test_the_stage_its_worker_and_the_sources_are_named(cluster: str) -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        raise RuntimeError("who listens must not end the run")

    with Engine(sleeping, still_after=0.5, on_still=tell) as engine:
        run = engine.submit([0.0, 2.0, 0.0], keys=["a", "b", "c"])
        parents = [parent.outcome.value for parent in run]

    assert len(parents) == 3
    assert 1 <= len(told) <= 3
    assert re.fullmatch(
        r"nothing has moved for \d s: stage slow: worker \d has had batch 0 for \d s "
        r"\(2 rows of a, b\)(; stage slow: worker \d has had batch 1 for \d s \(1 rows of c\))?",
        told[0],
    ), told[0]
