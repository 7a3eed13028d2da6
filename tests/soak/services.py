"""The processes that a soak needs, each ended with its context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.stores import ACCESS_KEY, SECRET_KEY

ROOT = Path(__file__).parents[2]
# Ray's own limit, 30 s, ends nodes of a busy machine.
NODE_START_S = 180


@contextmanager
def running_store(seed: int) -> Iterator[dict[str, str]]:
    """The endpoints of a store and of its faulty proxy, which AWS_* of this process names."""
    with started("tests.soak.store", str(seed)) as process:
        assert process.stdout is not None
        endpoints: dict[str, str] = json.loads(process.stdout.readline())
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoints["proxy"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield endpoints


@contextmanager
def running_nodes(place: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a Ray of two nodes, and its address."""
    said = place / "nodes.log"
    settings = {"RAY_TMPDIR": str(place), "RAY_raylet_start_wait_time_s": str(NODE_START_S)}
    with (
        said.open("wb") as errors,
        started("tests.cluster.nodes", "patient", errors=errors, **settings) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, f"no cluster came up: {said.read_text()[-2000:]}"
        yield process, address


@contextmanager
def started(
    module: str, *arguments: str, errors: Any = subprocess.DEVNULL, **more: str
) -> Iterator[subprocess.Popen[str]]:
    """A module as a process that ends when its standard input does."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdin=pipe,
        stdout=pipe,
        stderr=errors,
        text=True,
    )
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
