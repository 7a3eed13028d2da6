"""What is shown while a microbatch runs is bounded, and costs its outcome nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.logging import disable_run_logger

from rayorch_prefect.binding import live_progress
from rayorch_prefect.binding.failed_runs import MAX_RUNS, FailedRuns, failed_state
from rayorch_prefect.binding.live_progress import Progress, progress_artifact
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.stopping import Stop
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import RowOutcome, Source


def failed_row(i: int) -> Row:
    failure = Failure(Kind.GROUP_FAILURE, "Spoilt", "m" * 900, "Work", "child", (2,))
    source = Source(f"s3://lake/in/{i}", "e", 1, f"in/{i}")
    return Row(source, RowOutcome.FAILED, failure=failure)


class Shown:
    """What was shown of failed rows; refuses from the `away`th on, hangs at the `hangs`th."""

    def __init__(self, away: int = -1, hangs: int = -1) -> None:
        self.keys: list[str] = []
        self.texts: set[int] = set()
        self.away = away
        self.hangs = hangs

    async def show(self, key: str, kind: str, text: str) -> State[Any]:
        if len(self.keys) == self.away:
            raise ConnectionError("All connection attempts failed")
        if len(self.keys) == self.hangs:
            await asyncio.sleep(60)
        self.keys.append(key)
        self.texts.add(len(text))
        return failed_state(kind, text)


async def shown_of(count: int, shown: Shown, stop: Stop) -> FailedRuns:
    runs = FailedRuns(shown.show)
    with disable_run_logger():
        async with runs.shown(stop):
            for i in range(count):
                runs.add(failed_row(i))
    return runs


async def test_failed_runs_are_bounded_and_the_rest_is_counted() -> None:
    shown = Shown()
    runs = await shown_of(MAX_RUNS + 7, shown, Stop())
    assert shown.keys == [f"in/{i}" for i in range(MAX_RUNS)]
    assert shown.texts == {500}
    assert (runs.begun, runs.left_out) == (MAX_RUNS, 7)


async def test_a_server_that_is_away_is_asked_once() -> None:
    shown = Shown(away=2)
    runs = await shown_of(5, shown, Stop())
    assert shown.keys == ["in/0", "in/1"]
    assert (runs.begun, runs.left_out) == (2, 2)


async def test_a_stop_leaves_the_rest_unshown() -> None:
    stop = Stop()
    asyncio.get_running_loop().call_later(0.1, stop.ask, "enough")
    shown = Shown(hangs=1)
    await asyncio.wait_for(shown_of(3, shown, stop), 30)
    assert shown.keys == ["in/0"]


def test_a_failed_run_is_named_by_its_kind() -> None:
    state = failed_state("GroupFailure", "why")
    assert (state.is_failed(), state.name, state.message) == (True, "GroupFailure", "why")


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Progress]:
    """What Prefect is given as progress; each is refused where its text is `refuse`."""
    given: list[Progress] = []

    async def create(progress: float, key: str, text: str) -> UUID:
        if text == "refuse":
            raise ConnectionError("All connection attempts failed")
        given.append((progress, text))
        return uuid4()

    async def update(artifact: UUID, progress: float, text: str) -> UUID:
        return await create(progress, "", text)

    monkeypatch.setattr(live_progress, "acreate_progress_artifact", create)
    monkeypatch.setattr(live_progress, "aupdate_progress_artifact", update)
    return given


async def test_progress_is_at_most_one_update_a_second_and_ends_true(
    stored: list[Progress],
) -> None:
    done, begun = 0, time.monotonic()
    async with progress_artifact("p", lambda: (float(done), str(done))):
        while time.monotonic() < begun + 1.5:
            await asyncio.sleep(0.02)
            done += 1
    seconds = time.monotonic() - begun

    assert stored[-1] == (float(done), str(done))
    # One at the start, one a second, and the last.
    assert 3 <= len(stored) <= seconds + 2


async def test_nothing_is_sent_where_nothing_has_changed(stored: list[Progress]) -> None:
    async with progress_artifact("p", lambda: (50.0, "half")):
        await asyncio.sleep(1.2)
    assert stored == [(50.0, "half")]


async def test_progress_that_is_refused_raises_nothing(stored: list[Progress]) -> None:
    with disable_run_logger():
        async with progress_artifact("p", lambda: (50.0, "refuse")):
            await asyncio.sleep(0)
    assert stored == []
