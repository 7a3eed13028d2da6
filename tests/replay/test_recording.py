"""What is in a recording's file, and what is there of it when something went wrong."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect import RecordFailure, program, run_local, stage
from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import BatchReported
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import RowFailure, RowsReport
from rayorch_prefect.replay import recorder as recorder_module
from rayorch_prefect.replay.encoding import decode, encoder
from rayorch_prefect.replay.frames import FrameWriter
from rayorch_prefect.replay.recorder import Recorder
from rayorch_prefect.replay.recording import CUT_OFF, Recording
from rayorch_prefect.replay.redaction import without_secrets
from rayorch_prefect.scheduler.counts import Counts
from rayorch_prefect.scheduler.digest import state_digest
from tests.replay.recorded import events_of, locally, replayed, simulated, text_of, write

SECRET = "a-secret-that-nobody-may-read"


def refusing(row: dict[str, str]) -> dict[str, str]:
    if "?" in row["text"]:
        raise RecordFailure("Refused", f"{SECRET} of s3://user:pass@host/x")
    return row


@program
def refuses(row: Any) -> Any:
    return stage(refusing)(row)


def test_neither_values_nor_secrets_enter_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    path = tmp_path / "made" / "for it" / "run"
    rows = [{"text": "payload-1"}, {"text": "payload-2?"}]
    parents = list(run_local(refuses, rows, record=path))
    assert sum(SECRET in str(parent.cause) for parent in parents) == 1
    text = text_of(path)
    assert "Refused" in text
    assert "*** of s3://***@host/x" in text
    for hidden in (SECRET, "payload", "user:pass"):
        assert hidden not in text
    monkeypatch.delenv("MY_TOKEN")
    assert replayed(path).recording.end == "closed"


def test_failures_keep_their_order() -> None:
    """Bars are applied in the order that the worker reported them."""
    spoiled = RowFailure(Kind.GROUP_FAILURE, "Spoiled", "")
    report = RowsReport(3, (), {2: spoiled, 0: RowFailure(None, "ValueError", "x", True)}, (1,))
    event = BatchReported(7, 1, report)
    again = decode(json.loads(encoder()(event)))
    assert again == event
    assert list(again.report.failures) == [2, 0]
    assert again.report.failures[2].kind is Kind.GROUP_FAILURE


def test_a_killed_run_is_read_up_to_its_last_whole_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_STEPS", 16)
    path = tmp_path / "run"
    locally(path)
    data, whole = path.read_bytes(), events_of(path)
    before = 0
    for length in range(3000, len(data), 297):
        path.write_bytes(data[:length])
        replay = replayed(path)
        assert replay.number >= before
        assert events_of(path) == whole[: max(0, replay.number - 1)]
        assert replay.recording.end == CUT_OFF
        before = replay.number
    assert before > 80


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "run"
    killed = subprocess.run([sys.executable, "-m", "tests.replay.killed", str(path)])
    assert killed.returncode == -signal.SIGKILL
    replay = replayed(path)
    assert replay.recording.end == CUT_OFF
    assert replay.number >= 256
    assert sum(replay.outcomes.values()) > 100


def test_a_damaged_frame_ends_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "run"
    locally(path)
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(data)
    assert replayed(path).recording.end == CUT_OFF


def test_a_recording_ends_at_its_limit_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_STEPS", 16)
    path = tmp_path / "run"
    with caplog.at_level(logging.WARNING):
        assert locally(path, record_mb=0.008) == 20
    (warned,) = caplog.records
    assert "has reached its limit of 0.008 MiB: the run goes on" in warned.getMessage()
    assert path.stat().st_size < 0.008 * (1 << 20)
    replay = replayed(path)
    assert replay.recording.end == "size limit"
    assert replay.number in range(16, 100)
    assert f"{replay.number} of its steps are there" in warned.getMessage()


def test_a_file_that_cannot_be_written_to_ends_the_recording_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: FrameWriter, payload: bytes) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run"
    add = FrameWriter.add
    monkeypatch.setattr(recorder_module, "MOST_STEPS", 16)
    monkeypatch.setattr(
        FrameWriter, "add", lambda self, data: (full if self.size > 4000 else add)(self, data)
    )
    with caplog.at_level(logging.WARNING):
        assert locally(path) == 20
    (warned,) = caplog.records
    assert "cannot go on (OSError(28, 'No space left on device'))" in warned.getMessage()
    assert replayed(path).recording.end == CUT_OFF


def test_what_has_waited_for_a_second_is_written(tmp_path: Path) -> None:
    run = next(filter(None, map(simulated, range(20))))
    now = [0.0]
    recorder = Recorder(tmp_path / "run", timer=lambda: now[0])
    recorder.begin(run.plan, run.scheduler.options)
    recorder.given(None)
    recorder.told([])
    assert recorder.due == 1.0
    assert not events_of(tmp_path / "run")
    recorder.flush()
    assert [step.number for step in Recording(tmp_path / "run").steps()] == [0]
    assert recorder.due > 1e9
    now[0] = 2.0
    recorder.given(run.log[0][0])
    recorder.told(run.log[0][1])
    now[0] = 3.0
    recorder.given(run.log[1][0])
    assert events_of(tmp_path / "run") == [run.log[0][0]]


def test_a_recording_is_a_new_file(tmp_path: Path) -> None:
    write(next(filter(None, map(simulated, range(20)))), tmp_path / "deep" / "run")
    with pytest.raises(UsageError, match="is there already; name a new file"):
        Recorder(tmp_path / "deep" / "run")
    with pytest.raises(UsageError, match=r"cannot be made \((Not a directory|File exists)\)"):
        Recorder(tmp_path / "deep" / "run" / "more")
    with pytest.raises(UsageError, match="record_mb is 0; expected more than 0 MiB"):
        Recorder(tmp_path / "other", 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no recording"),
        (b"rayorch recording\x07", "in another format than 1"),
        (b"rayorch recording\x01", "is empty: the run ended before a frame"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "run"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        Recording(path)
    with pytest.raises(UsageError, match="No such file"):
        Recording(tmp_path / "none")


def test_a_dummy_secret_blots_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "row")
    assert without_secrets("row 1 of s3://rows/") == "row 1 of s3://rows/"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "row-row-row")
    assert without_secrets("it said row-row-row") == "it said ***"


def test_names_of_fields_are_never_redacted() -> None:
    """What redacted events give again has the same digest, whatever the secret reads."""
    state = Counts(2)
    blotting = state_digest(state, lambda text: text.replace("suppressed", "***"))
    assert blotting == state_digest(state)
