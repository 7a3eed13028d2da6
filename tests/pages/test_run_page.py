"""The finished demo run, opened in the Prefect UI by a headless Chromium.

RAYORCH_SCREENSHOTS=docs/images keeps the pictures that the README and docs/control-room.md show.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.pages.browser import HEIGHT, NAMES, WIDTH, installed, screenshot, text_with

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(installed() is None, reason=f"no Chromium is installed ({NAMES})"),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The summary of a finished demo whose servers are up."""
    folder = tmp_path_factory.mktemp("demo")
    running = subprocess.Popen(
        [sys.executable, "-m", "rayorch_prefect.cli.demo", "--keep"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    try:
        said = ""
        for line in running.stdout:
            said += line
            if "stay up" in line:
                break
        else:
            raise AssertionError(said)
        yield json.loads((folder / ".demo/summary.json").read_text())
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=60)


def flow_run(demo: dict[str, Any]) -> dict[str, Any]:
    address, _, run = demo["flow_run"].partition("/v2/runs/flow-run/")
    known: dict[str, Any] = httpx.get(f"{address}/api/flow_runs/{run}", trust_env=False).json()
    return known


def test_the_runs_page_names_it_and_says_how_it_ended(demo: dict[str, Any]) -> None:
    run = flow_run(demo)
    failed = sum(demo["failed"].values())
    counts = f"{demo['sources']} sources: {demo['published']} published, {failed} failed"
    expected = [run["name"], "nightly", "PartiallyCompleted", counts]

    text = text_with(demo["flow_run"], expected)

    assert [each for each in expected if each not in text] == [], text


def test_its_microbatches_are_listed(demo: dict[str, Any]) -> None:
    expected = [f"microbatch {number}: " for number in range(demo["flow_runs"] - 1)]

    text = text_with(f"{demo['flow_run']}?tab=SubflowRuns", expected)

    assert [each for each in expected if each not in text] == [], text


def ask(demo: dict[str, Any], path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    address, _, _ = demo["flow_run"].partition("/v2/")
    found: list[dict[str, Any]] = httpx.post(
        f"{address}/api{path}", json=body, trust_env=False
    ).json()
    return found


def artifact_page(demo: dict[str, Any], key: str) -> str:
    """The page of the first artifact of this key."""
    (artifact, *_) = ask(
        demo, "/artifacts/filter", {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC"}
    )
    address, _, _ = demo["flow_run"].partition("/runs/")
    return f"{address}/artifacts/artifact/{artifact['id']}"


def report_page(demo: dict[str, Any]) -> str:
    (report,) = Path(demo["outputs"]).rglob("report.html")
    return report.as_uri()


def counted(demo: dict[str, Any]) -> list[str]:
    """What the summary and the report say of the night, in words."""
    types = ", ".join(f"{name} {count}" for name, count in sorted(demo["failed"].items()))
    failed = sum(demo["failed"].values())
    return [
        "documents, night: PartiallyCompleted",
        "published failed dropped skipped not processed",
        f"{demo['published']} {failed} 0 0 0",
        f"Failed by kind: RecordFailure {failed}; by type: {types}",
        "in/bad-locked.pdf: RecordFailure[Encrypted] in stage ListPages",
        "--retry-failed",
        "Busiest: ",
    ]


def test_the_summary_counts_and_names_what_failed(demo: dict[str, Any]) -> None:
    expected = counted(demo)

    text = text_with(artifact_page(demo, "summary-documents"), expected)

    assert [each for each in expected if each not in text] == [], text


def test_the_failed_sources_are_in_a_table(demo: dict[str, Any]) -> None:
    expected = [
        "source key type cause stage child kind attempts",
        *(f".pdf {name} s3://demo/in/bad-" for name in demo["failed"]),
    ]

    text = text_with(artifact_page(demo, "failed-documents"), expected)

    assert [each for each in expected if each not in text] == [], text


def test_a_microbatch_says_how_far_it_got(demo: dict[str, Any]) -> None:
    page = artifact_page(demo, "progress-documents-microbatch")
    expected = ["Progress: 100%", " sources: ", " published, ", "progress-documents-microbatch"]

    text = text_with(page, expected)

    assert [each for each in expected if each not in text] == [], text


def test_a_microbatch_names_the_sources_that_failed(demo: dict[str, Any]) -> None:
    (run,) = ask(demo, "/flow_runs/filter", {"flow_runs": {"name": {"like_": "microbatch 0: "}}})
    address, _, _ = demo["flow_run"].partition("/flow-run/")
    expected = ["microbatch 0: 16 sources", "failed in/bad-locked.pdf", "RecordFailure"]

    text = text_with(f"{address}/flow-run/{run['id']}?tab=TaskRuns", expected)

    assert [each for each in expected if each not in text] == [], text


def test_the_report_counts_and_names_what_failed(demo: dict[str, Any]) -> None:
    text = text_with(report_page(demo), ())

    assert [each for each in counted(demo) if each not in text] == [], text


def test_they_have_pictures(demo: dict[str, Any], tmp_path: Path) -> None:
    pages = {
        "demo-run": demo["flow_run"],
        "demo-summary": artifact_page(demo, "summary-documents"),
        "demo-failed": artifact_page(demo, "failed-documents"),
        "demo-report": report_page(demo),
    }
    for name, url in pages.items():
        path = tmp_path / f"{name}.png"

        screenshot(url, path)

        with Image.open(path) as image:
            assert image.size == (WIDTH, HEIGHT)
            # A page that did not load has next to no colours.
            colours = image.convert("RGB").getcolors(WIDTH * HEIGHT)
            assert colours is not None
            assert len(colours) > 100, name
            if kept := os.environ.get("RAYORCH_SCREENSHOTS"):
                # Few colours are enough for text, and make the files small.
                image.convert("RGB").quantize(48).save(Path(kept, path.name), optimize=True)
