"""A night of 3,000 sources on SQLite: all of it is recorded, and the flow's process stays small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = 3_000


@pytest.mark.slow
def test_a_night_of_3000_sources() -> None:
    command = [sys.executable, "-m", "tests.binding.large_night", str(SOURCES)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("AWS_ENDPOINT_URL", "PREFECT_API_URL", "RAY_ADDRESS"):
        environment.pop(name, None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=290
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    said = json.loads(done.stdout.splitlines()[-1])

    assert said["counts"].startswith(f"{SOURCES} sources: {SOURCES} published, 0 failed")
    assert said["complaints"] == []
    assert said["recorded"]
    assert said["upload_states"] == {"Completed": SOURCES}
    assert said["upload_names"] == said["uploads"] == SOURCES
    assert said["task_runs"] == SOURCES + said["microbatches"]
    assert said["grown"] == []
