"""`rayorch-prefect replay` over a recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayorch_prefect.cli.main import main
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.scheduler.core import Scheduler
from tests.replay.recorded import locally


@pytest.fixture
def recorded(tmp_path: Path) -> str:
    locally(tmp_path / "run")
    return str(tmp_path / "run")


def replay(*arguments: str) -> int:
    return main(["replay", *arguments])


def test_what_a_run_came_to_is_summed_up(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(recorded, "--check") == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[:4])
    assert said["run"].startswith("everything 1, began 2")
    assert said["steps"].endswith("; the recording ends there (closed)")
    assert said["parents"] == "20 in 1 microbatches: 20 COMPLETED"


def test_a_check_says_so(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(recorded, "--check") == 0
    checked = capsys.readouterr().out
    assert "check          every answer is the recorded one, and so is the state" in checked
    assert f"state          {_state(recorded)}" in checked


def _state(recorded: str) -> str | None:
    read = Recording(recorded)
    list(read.steps())
    return read.state


def test_a_stop_on_the_way_shows_what_is_open(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(recorded, "--until", "40", "--check") == 0
    said = capsys.readouterr().out
    assert "; stopped before step 40" in said
    assert " in flight" in said
    assert "at worker " in said
    assert said.endswith("every answer is the recorded one\n")
    assert replay(recorded, "--until", "9999") == 0
    assert "; the recording ends there, before step 9999 (" in capsys.readouterr().out


def test_a_story_is_told(recorded: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(recorded, "--story", "row 5", "3") == 0
    said = capsys.readouterr().out
    assert said.startswith("row 5: page 3, microbatch 0, row 5\n  Split (Call 1): ENDED, PRESENT")
    assert "this row failed for good as RecordFailure: Three: f has a page 3" in said
    assert replay(recorded, "--story", "row 5", "--until", "3") == 0
    assert capsys.readouterr().out.endswith("parent: has not ended\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--story", "row 99"], "no source row with the key 'row 99' has been admitted by step"),
        (["--story", "row 5", "9/2"], "row 5 has nothing at 9/2: source has 5 of page, 5 of word"),
        (["--story", "a", "b", "c"], "--story is 'a b c'; expected a key and perhaps a path"),
    ],
)
def test_what_is_asked_wrongly_is_refused(
    recorded: str, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(recorded, *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_difference_is_told_with_its_event(
    recorded: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "release", lambda self, ranges: None)
    assert replay(recorded) == 0
    capsys.readouterr()
    assert replay(recorded, "--check") == 1
    said = capsys.readouterr().err
    assert said.startswith("rayorch-prefect replay: step ")
    assert "ReleaseValues" in said.partition("; now ")[0]
    assert "recorded by" not in said
    monkeypatch.setattr("rayorch_prefect.cli.replay.VERSION", "9.9")
    assert replay(recorded, "--check") == 1
    assert ", replayed by 9.9)" in capsys.readouterr().err


def test_no_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replay(str(tmp_path / "none")) == 2
    assert "No such file or directory; expected a recording" in capsys.readouterr().err
