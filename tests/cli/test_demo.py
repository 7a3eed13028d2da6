"""The demo as a process, and the comparison that its exit status stands on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from rayorch_prefect.cli.demo_check import Ended, differences, read_ends, strays
from rayorch_prefect.cli.demo_run import until_ctrl_c
from rayorch_prefect.workloads.samples import Sample

ROOT = Path(__file__).parents[2]
FAILED = {"Encrypted": 1, "NotAPdf": 1, "Truncated": 1}


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rayorch_prefect.cli.demo", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As in a terminal: Ctrl-C reaches every process of the group.
        start_new_session=True,
    )


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def read_until(process: subprocess.Popen[str], said: Callable[[str], bool]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if said(line):
            return lines
    raise AssertionError(f"the demo ended with {process.wait()}: {''.join(lines)}")


def test_the_demo_publishes_what_it_should_and_says_where(tmp_path: Path) -> None:
    # Settings of the user must not lead the demo to other services.
    elsewhere = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "RAY_ADDRESS": "127.0.0.1:9"}
    running = start(tmp_path, AWS_ENDPOINT_URL="http://127.0.0.1:9", **elsewhere)
    said, _ = running.communicate(timeout=280)

    assert running.returncode == 0, said
    summary = json.loads((tmp_path / ".demo/summary.json").read_text())
    counts = (summary["sources"], summary["published"], summary["failed"], summary["flow_runs"])
    assert counts == (42, 39, FAILED, 4)
    assert summary["upload_task_runs"] == 39
    assert 0 < summary["first_upload_s"] <= summary["wall_s"]
    assert summary["manifest"].startswith("s3://demo/out/_rayorch/documents/manifests/")
    out = Path(summary["outputs"])
    documents = [json.loads(path.read_text()) for path in out.glob("in/*.json")]
    assert sum(document["page_count"] for document in documents) == summary["pages"]
    assert len(list(out.glob("in/*.md"))) == len(documents) == 39
    pages = [page for document in documents for page in document["pages"]]
    scanned = [page["text"] for page in pages if page["text_from"] == "ocr"]
    assert sorted(text.splitlines()[1] for text in scanned) == [
        "Page 1 of 1",
        "Page 1 of 2",
        "Page 2 of 2",
    ]
    assert list((out / "_rayorch/documents/manifests").rglob("*.parquet"))
    assert "grains: ListPages" in said
    assert said.splitlines()[-1] == "Every source ended as it should."
    assert "INFO" not in said
    with pytest.raises(httpx.HTTPError):
        httpx.get(summary["flow_run"], trust_env=False)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_in_the_night_leaves_nothing_running(tmp_path: Path, number: int) -> None:
    running = start(tmp_path)
    read_until(running, lambda line: "grains:" in line)
    started = family(running)
    assert len(started) > 4

    os.killpg(running.pid, number) if number == signal.SIGINT else running.send_signal(number)
    said, _ = running.communicate(timeout=60)

    assert running.returncode == 130, said
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert said.splitlines()[-1] == "demo: interrupted; nothing is left running"


@pytest.mark.slow
def test_kept_servers_answer_until_they_are_ended(tmp_path: Path) -> None:
    running = start(tmp_path, "--keep")
    second = None
    try:
        read_until(running, lambda line: "stay up" in line)
        summary = json.loads((tmp_path / ".demo/summary.json").read_text())
        address, _, run = summary["flow_run"].partition("/v2/runs/flow-run/")
        as_browser = {"Accept": "text/html"}
        shown = httpx.get(summary["flow_run"], headers=as_browser, trust_env=False)
        assert (shown.status_code, "<html" in shown.text) == (200, True)
        known = httpx.get(f"{address}/api/flow_runs/{run}", trust_env=False).json()
        assert known["state_name"] == summary["state"] == "PartiallyCompleted"
        second = start(tmp_path)
        refused, _ = second.communicate(timeout=30)
        started = family(running)
    finally:
        running.send_signal(signal.SIGTERM)
    said, _ = running.communicate(timeout=60)

    assert running.returncode == 0, said
    assert (second.returncode, "another demo uses" in refused) == (2, True)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_a_kept_demo_ends_by_a_signal_that_another_thread_took() -> None:
    # What the main thread waits in goes on then.
    def take() -> None:
        time.sleep(0.5)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    # Shells start what they run in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        taking = threading.Thread(target=take)
        taking.start()
        until_ctrl_c()
        taking.join()
    finally:
        signal.signal(signal.SIGINT, before)


GOOD = Sample("good.pdf", b"", pages=3)
BAD = Sample("bad.pdf", b"", failure="Encrypted")
ENDS = {
    "good.pdf": Ended("published", files=("in/good.pdf.json",), pages=3),
    "bad.pdf": Ended("failed", failure="Encrypted"),
}


def test_no_difference_where_all_ended_as_they_should() -> None:
    assert differences([GOOD, BAD], ENDS) == []


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("good.pdf", {"pages": 2}, "expected published with 3 pages, got published with 2 pages"),
        ("good.pdf", {"missing": 1}, "got published with 3 pages and 1 gaps"),
        ("good.pdf", {"outcome": "not_processed"}, "got not_processed"),
        ("good.pdf", {"files": ()}, "expected files"),
        ("good.pdf", {"altered": ("in/good.pdf.json",)}, "not stored as the manifest says"),
        ("bad.pdf", {"failure": "Truncated"}, "expected failed as Encrypted, got failed as Trunc"),
        ("bad.pdf", {"files": ("in/bad.pdf.json",)}, "expected no files"),
    ],
)
def test_each_deviation_is_a_difference(name: str, changed: dict[str, Any], said: str) -> None:
    ends = {**ENDS, name: replace(ENDS[name], **changed)}
    (difference,) = differences([GOOD, BAD], ends)
    assert difference.startswith(name)
    assert said in difference


def test_a_source_without_a_row_and_a_row_without_a_source_are_differences() -> None:
    other = replace(GOOD, name="other.pdf")
    assert differences([other, BAD], ENDS) == [
        "other.pdf: expected published with 3 pages, and the manifest has no row",
        "good.pdf: not among the samples, yet published with 3 pages",
    ]


def test_ends_come_from_the_manifest_and_the_stored_files(tmp_path: Path) -> None:
    pages = [{"ordinal": 0}, {"ordinal": 2}, {"ordinal": 1}]
    content = json.dumps({"pages": pages, "missing": [3]}).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.pdf.json").write_bytes(content)
    (tmp_path / "in/stray.md").write_bytes(b"")
    row = {
        "uri": "s3://demo/in/a.pdf",
        "row_outcome": "published",
        "type": None,
        "output_keys": ["out/in/a.pdf.json", "out/in/a.pdf.md"],
        "sha256": [sha256(content).hexdigest(), "0" * 64],
    }

    ends = read_ends([row], "s3://demo/in/", tmp_path)

    # Two pages have changed places, so one is where it belongs; the Markdown file is not there.
    files = ("in/a.pdf.json", "in/a.pdf.md")
    expected = Ended("published", None, files, pages=1, missing=1, altered=("in/a.pdf.md",))
    assert ends == {"a.pdf": expected}
    assert strays(ends, tmp_path) == ["in/stray.md: stored, and not in the manifest"]


@pytest.mark.slow
def test_a_wrong_answer_makes_the_exit_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sample is expected to fail that will not: the real demo, its services and all."""
    script = (
        "import sys\n"
        "from dataclasses import replace\n"
        "from rayorch_prefect.workloads import samples\n"
        "real = samples.make_samples\n"
        "def wrong():\n"
        "    made = real(7)\n"
        "    last = replace(made.files[-1], failure='Encrypted')\n"
        "    return samples.SampleSet((*made.files[:-1], last))\n"
        "samples.make_samples = wrong\n"
        "from rayorch_prefect.cli.demo import main\n"
        "sys.exit(main([]))\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == 1, ended.stderr
    assert "expected failed as Encrypted, got published with" in ended.stdout
    assert json.loads((tmp_path / ".demo/summary.json").read_text())["published"] == 4
