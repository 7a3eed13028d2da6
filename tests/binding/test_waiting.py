"""A night whose workers wait for resources says so where people look."""

from __future__ import annotations

import asyncio
from io import StringIO
from typing import Any

import pytest
import ray
from rich.console import Console

from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until
from rayorch_prefect.binding.progress import progress_line
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.cli.display import Display
from rayorch_prefect.execution import engine
from tests.binding.conftest import RunNightly
from tests.binding.test_night import ask
from tests.services import Bucket, on_moto


class Holder:
    """Someone else's work."""

    def ready(self) -> bool:
        return True


@on_moto
async def test_what_is_needed_and_free_is_in_the_runs_log_and_on_the_display(
    bucket: Bucket,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "WAIT_NOTICE_S", 0.3)
    bucket.put_sources(a={"n": 1})
    others: Any = ray.remote(Holder)
    holder = others.options(num_cpus=4).remote()
    ray.get(holder.ready.remote())

    with watching() as nights:
        running = asyncio.ensure_future(run_nightly())
        while not (nights and nights[-1].waiting):
            assert not running.done(), running.exception() or running.result().message
            await asyncio.sleep(0.05)
        line, shown = progress_line(nights[-1]), StringIO()
        Console(file=shown, width=400).print(Display(nights).render())
        ray.kill(holder)
        ended = await running

    needed = "waiting for resources: stage Split 1 of 1 (each needs CPU 0.1)"
    assert needed in line
    assert "free in the cluster: CPU 0; given up in" in line
    assert "s of 300" in line
    assert needed in shown.getvalue()
    assert ended.state.name == "Completed", ended.message
    assert ended.night.waiting == ""
    assert "waiting" not in progress_line(ended.night)

    body = {"logs": {"flow_run_id": {"any_": [ended.night.id]}}}

    def logged() -> bool:
        return any(
            needed in entry["message"] for entry in ask(prefect_server, "/logs/filter", body)
        )

    assert wait_until(logged, 20)
