"""The examples, run as their readers run them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples import fallback, own_upload, regions, video, word_count
from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.prefect_server import PrefectServer
from tests.services import Bucket

ROOT = Path(__file__).parents[2]
WORD_COUNT = ROOT / "examples" / "word_count.py"
VIDEO_BRANCHES = ("frames", "segments")
LONGEST = 30


async def test_a_program_and_a_nightly_flow_of_ones_own(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str
) -> None:
    bucket.put("in/rose.txt", b"a rose is\na rose is\n\n.a rose")
    bucket.put("in/empty.txt", b"")

    run: Any = word_count.word_count_nightly
    state = await run(bucket.source, bucket.destination, return_state=True)

    assert (state.name, state.is_completed()) == ("Completed", True), state.message
    counted = json.loads(bucket.get("out/in/rose.txt.json"))
    line = {"a": 1, "rose": 1, "is": 1}
    assert counted == [line, line, {}, {".a": 1, "rose": 1}]
    assert json.loads(bucket.get("out/in/empty.txt.json")) == []


async def test_an_upload_task_of_ones_own(
    bucket: Bucket,
    prefect_server: PrefectServer,
    ray_cluster: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COUNTS_DB", str(tmp_path / "counts.sqlite"))
    bucket.put("in/rose.txt", b"a rose\nis a rose")
    bucket.put("in/empty.txt", b"")

    run: Any = own_upload.words_into_database
    state = await run(bucket.source, bucket.destination, return_state=True)

    assert (state.name, state.is_completed()) == ("Completed", True), state.message
    with closing(sqlite3.connect(tmp_path / "counts.sqlite")) as database:
        rows = dict(database.execute("SELECT key, words FROM counts"))
    lines = [{"a": 1, "rose": 1}, {"is": 1, "a": 1, "rose": 1}]
    assert rows == {"in/empty.txt": "[]", "in/rose.txt": json.dumps(lines)}
    assert bucket.keys("out/in/") == []


def test_it_has_at_most_30_lines_and_the_readme_shows_them() -> None:
    text = WORD_COUNT.read_text()
    assert len(text.splitlines()) <= LONGEST
    assert f"```python\n{text}```\n" in (ROOT / "README.md").read_text()


def test_the_command_line_finds_it() -> None:
    assert load_program("examples.word_count:word_count") is word_count.word_count


def test_nested_domains(ray_cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    regions.main()
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "locked: RecordFailure[Locked] in stage pages at source: needs a key",
        "long: [['long 0-10 mm', 'long 10-30 mm'], [],"
        " ['long 0-5 mm', 'long 5-10 mm', 'long 10-15 mm']]",
        "short: [['short 0-30 mm']]",
    ]


def test_a_fallback_in_process(capsys: pytest.CaptureFixture[str]) -> None:
    fallback.main()
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "row 0 COMPLETED {'sum': 6, 'missing': []}",
        "row 1 COMPLETED {'sum': 11, 'missing': [0]}",
        "row 2 FAILED RecordFailure[TooManyGaps] in stage in_words at line 0:"
        " 2 of 3 members failed, max_missing=0.5; the first: Unreadable: seven",
        "row 3 COMPLETED {'sum': 0, 'missing': []}",
    ]


def test_side_by_side_expansions(ray_cluster: str, capsys: pytest.CaptureFixture[str]) -> None:
    video.main()
    lines = sorted(capsys.readouterr().out.splitlines())
    # Both branches refuse it; which of the two shows as the cause is left open.
    why = " at source: 9 bytes are no whole number of chunks"
    of_branch = [f"broken: RecordFailure[Truncated] in stage {s}{why}" for s in VIDEO_BRANCHES]
    assert lines[0] in of_branch
    assert lines[1:] == [
        "clip: {'brightness': [0.0, 1.0, 2.0, 3.0, 4.0], 'loudest': [100, 101]}",
        "podcast: {'brightness': [], 'loudest': [100, 101, 102]}",
        "silent: {'brightness': [0.0, 1.0], 'loudest': []}",
    ]
