"""The finished demo run, opened in the Prefect UI by a headless Chromium.

RAYORCH_SCREENSHOT=docs/images/demo-run.png keeps the picture that the README shows.
"""

from __future__ import annotations

import json
import os
import shutil
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


def test_it_has_a_picture(demo: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "run.png"

    screenshot(demo["flow_run"], path)

    with Image.open(path) as image:
        assert image.size == (WIDTH, HEIGHT)
        # A page that did not load has next to no colours.
        colours = image.convert("RGB").getcolors(WIDTH * HEIGHT)
    assert colours is not None
    assert len(colours) > 200
    if kept := os.environ.get("RAYORCH_SCREENSHOT"):
        shutil.copyfile(path, kept)
