"""SIGKILL just before and just after the n-th request to the store, for one n after another.

After each the same slice is started again: every parent is published once with the right bytes,
ledger and manifest are right, and no part of an upload is left.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import pytest

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from tests.binding.slices import NAMES, Slice
from tests.binding.small_night import LOG_SETTING, PART_BYTES, run_small_night, small
from tests.fault_proxy import FaultProxy
from tests.services import Bucket, S3Server, on_moto

SETTINGS = {"RAYORCH_PREFECT_PART_BYTES": str(PART_BYTES)}
END_SECONDS = 60.0

Side = Literal["before", "after"]


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Processes that begin with everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.binding.small_night"])
    return context


def run_killed(proxy: FaultProxy, process: BaseProcess, at: str, number: int, side: Side) -> bool:
    """Run the process and kill it at its n-th request for `at`; False if it ended before that."""

    def kill(_: object) -> None:
        process.kill()

    rule = (
        proxy.on("", at, nth=number, times=1, before=kill, cut="request")
        if side == "before"
        else proxy.on("", at, nth=number, times=1, after=kill, cut="reply")
    )
    try:
        process.start()
        process.join(END_SECONDS)
        assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    finally:
        proxy.remove(rule)
    return process.exitcode != 0


@pytest.mark.parametrize(
    ("bucket", "side", "step"),
    [
        # The night has one thread: just before a request the store is as just after the one before.
        pytest.param("moto", "after", 1, marks=pytest.mark.slow),
        pytest.param("moto", "before", 7, marks=pytest.mark.slow),
        pytest.param("rclone", "before", 13, marks=pytest.mark.slow),
        pytest.param("rclone", "after", 7, marks=pytest.mark.slow),
        ("moto", "after", 17),
    ],
    indirect=["bucket"],
)
@pytest.mark.timeout(900)
def test_killed_at_each_request(
    bucket: Bucket,
    s3_server: S3Server,
    processes: ForkServerContext,
    step: int,
    side: Side,
    tmp_path: Path,
) -> None:
    bucket.put_sources(**{name: {"n": n} for name, n in NAMES.items()})
    aws = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
    log = tmp_path / "log"
    settings = {**aws, **SETTINGS, LOG_SETTING: str(log)}
    number, killed = step, True
    while killed:
        there = Slice(bucket, f"out{number}", "small", small.plan.fingerprint)
        asked = (settings, bucket.source, there.destination)
        first = processes.Process(target=run_small_night, args=(*asked, "first"))
        killed = run_killed(s3_server.proxy, first, bucket.name, number, side)
        if killed:
            whole = there.whole()
            log.write_text("")
            again = processes.Process(target=run_small_night, args=(*asked, "second"))
            again.start()
            again.join(END_SECONDS)
            assert again.exitcode == 0, f"the run after a kill {side} request {number} failed"
            # What was whole in the store is not computed again, recorded or not.
            assert set(log.read_text().split()) == NAMES.keys() - whole
        last = "second" if killed else "first"
        there.check(f"{there.destination}_rayorch/small/manifests/{last}/", last)
        number += step
    assert number > 40  # all of a night's requests were met


def started(bucket: Bucket, there: Slice, api: dict[str, str]) -> subprocess.Popen[bytes]:
    """The command line's night of the slice."""
    command = [sys.executable, "-m", "rayorch_prefect.cli.main", "run"]
    command += ["--program", "tests.binding.small_night:small"]
    command += ["--source", bucket.source, "--destination", there.destination]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **SETTINGS, **api},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def end_of_killed(
    proxy: FaultProxy, bucket: Bucket, there: Slice, api: dict[str, str], number: int, side: Side
) -> int:
    """The exit status of a night that is killed at this request."""
    begun: list[subprocess.Popen[bytes]] = []

    def kill(_: object) -> None:
        begun[0].kill()

    rule = (
        proxy.on("", bucket.name, nth=number, times=1, before=kill, cut="request")
        if side == "before"
        else proxy.on("", bucket.name, nth=number, times=1, after=kill, cut="reply")
    )
    try:
        begun.append(started(bucket, there, api))
        return begun[0].wait(END_SECONDS * 3)
    finally:
        begun[0].kill()
        proxy.remove(rule)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@on_moto
async def test_the_whole_stack_killed_at_every_tenth_request(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    ray_cluster: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket.put_sources(**{name: {"n": n} for name, n in NAMES.items()})
    monkeypatch.setenv("RAYORCH_PREFECT_PART_BYTES", SETTINGS["RAYORCH_PREFECT_PART_BYTES"])
    api = {"PREFECT_API_URL": prefect_server.api_url, "RAY_ADDRESS": ray_cluster}
    sides: Iterator[Side] = cycle(("before", "after"))
    number, end = 0, -signal.SIGKILL
    while end:
        number, side = number + 10, next(sides)
        there = Slice(bucket, f"out{number}", "small", small.plan.fingerprint)
        end = await asyncio.to_thread(
            end_of_killed, s3_server.proxy, bucket, there, api, number, side
        )
        assert end in (0, -signal.SIGKILL), end
        with watching() as nights:
            state = await flow_state(
                nightly, "tests.binding.small_night:small", bucket.source, there.destination
            )
        assert state.is_completed(), f"after a kill {side} request {number}: {state}"
        there.check(nights[0].manifest, nights[0].id)
    assert number > 40
