"""An Engine's counters are among Ray's metrics, where Prometheus finds them."""

from __future__ import annotations

import re
import urllib.request
from typing import Any

import pytest
import ray

from rayorch_prefect import Engine, F, RecordFailure, program, stage
from rayorch_prefect.execution.metrics import EngineMetrics
from rayorch_prefect.execution.ray_metrics import RayMetrics
from tests.execution.conftest import eventually

_SHOWN = re.compile(r'ray_(rayorch_\w+)\{.*program="metered".*\} (\S+)$')
_TAG = re.compile(r'(?:stage|outcome)="(\w+)"')


def numbered(row: int) -> list[int]:
    return list(range(row))


def even(number: int) -> int:
    if number % 2:
        raise RecordFailure("Odd", str(number))
    return number


class Gather:
    def __call__(self, lists: list[list[int]]) -> list[int]:
        return [len(one) for one in lists]


@program
def metered(row: Any) -> Any:
    numbers = F.expand(stage(numbered)(row), domain="number")
    evens = stage(even, batch_size=5)(numbers)
    return stage(Gather)()(F.reduce(evens, on_failure="skip"))


def shown_by_this_node() -> dict[tuple[str, str], float]:
    """(metric, stage or outcome) of the program `metered` to value, as Prometheus would read it."""
    (node,) = ray.nodes()  # type: ignore[no-untyped-call]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = [shown for line in lines if (shown := _SHOWN.match(line))]
    tags = [_TAG.search(shown[0]) for shown in found]
    return {
        (shown[1], tag[1] if tag else ""): float(shown[2])
        for shown, tag in zip(found, tags, strict=True)
    }


@pytest.mark.slow  # Ray brings its metrics to where they are read every 10 s
def test_counters_are_read_at_the_nodes_metrics_port(cluster: str) -> None:
    with Engine(metered) as engine:
        assert [parent.value() for parent in engine.run([5, 5])] == [3, 3]
        engine.show_parents({"published": 1, "failed": 1})
        engine.show_parents({"published": 2, "failed": 1})

    last = ("rayorch_parents_total", "published")
    eventually(lambda: shown_by_this_node().get(last) == 2, seconds=60)
    shown = shown_by_this_node()
    assert shown["rayorch_rows_total", "even"] == 10
    assert shown["rayorch_rows_total", "Gather"] == 2
    assert 2 <= shown["rayorch_batches_total", "even"] <= 10
    assert shown["rayorch_failures_total", "even"] == 4
    assert ("rayorch_failures_total", "Gather") not in shown
    assert shown["rayorch_parents_total", "failed"] == 1
    assert shown["rayorch_rows_waiting", "even"] == 0
    assert shown["rayorch_busy_share", "even"] == 0


def test_what_goes_wrong_with_metrics_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def look() -> EngineMetrics:
        raise ConnectionError("the agent is gone")

    metrics = RayMetrics("toy", look)
    metrics.start()
    metrics.close()
    (said,) = caplog.records
    assert said.message == "the Engine's counters are not in Ray's metrics any more"
