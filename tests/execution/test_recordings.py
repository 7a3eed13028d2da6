"""Runs on real Ray that are recorded, replayed and told."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect import Engine, F, RecordFailure, program, stage
from rayorch_prefect.errors import EngineClosed, UsageError
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.replay.replaying import Replay
from rayorch_prefect.scheduler.digest import state_digest
from rayorch_prefect.scheduler.telling import by_number
from tests.execution.conftest import Notes


def children(row: int) -> list[int]:
    return list(range(row))


def test_a_recorded_run_is_replayed_and_told(cluster: str, notes: Notes, tmp_path: Path) -> None:
    def work(child: int) -> int:
        if child == 1 and notes.first_time("death"):
            os._exit(1)
        if child == 2:
            raise RecordFailure("Two", "is no good")
        return child

    @program
    def forgiving(row: Any) -> Any:
        made = F.expand(stage(children)(row), domain="child")
        return F.reduce(stage(work, batch_size=2)(made), on_failure="skip")

    path = tmp_path / "run"
    engine = Engine(forgiving, record=path)
    with pytest.raises(EngineClosed):
        engine.story("a")
    told: list[str] = []
    with engine:
        run = engine.submit([3, 2], keys=["a", "b"])
        values = {parent.key: parent.value() for parent in run}
        told.append(engine.story("a", "2"))
        ended = threading.Event()

        def tell(_: object) -> None:
            told.append(engine.story("c"))
            ended.set()

        engine.submit([1], keys=["c"], on_parent=tell)
        assert ended.wait(60)
        with pytest.raises(UsageError, match="no source row with the key 'z' is remembered"):
            engine.story("z")
    assert values == {"a": [0, 1], "b": [0, 1]}
    assert "PRESENT, this one left out: a gap" in told[0]
    assert "parent: COMPLETED; gap at child 2 (RecordFailure[Two]" in told[0]

    replay = Replay(Recording(path))
    replay.run(check=True)
    driver = engine._live_driver
    assert replay.state() == state_digest(driver.scheduler)
    assert replay.recording.keys == {0: ["a", "b"], 1: ["c"]}
    for key, at in [("a", ()), ("a", (1,)), ("a", (2,)), ("b", (0,)), ("c", (0,))]:
        assert replay.story(key, at, by_number) == driver.chronicle.story(key, at, by_number)
    lost = [line for line in engine.story("a", (1,)).splitlines() if "worker lost" in line]
    assert lost or "worker lost" in engine.story("b", (1,))


def test_a_recording_that_cannot_be_made_is_refused_before_anything_starts(
    cluster: str, tmp_path: Path
) -> None:
    (tmp_path / "run").write_text("something else")

    @program
    def same(row: Any) -> Any:
        return stage(children)(row)

    with pytest.raises(UsageError, match="is there already"), Engine(same, record=tmp_path / "run"):
        pass
    assert (tmp_path / "run").read_text() == "something else"
