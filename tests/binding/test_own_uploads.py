"""An upload task of the user's own: their delivery, our bookkeeping."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.opening import order_of
from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.binding.upload_tasks import loaded_task, name_of
from rayorch_prefect.errors import UsageError
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from tests.binding import uploading
from tests.binding.conftest import RunNightly
from tests.binding.test_night import ask, children_of
from tests.services import Bucket, S3Server, on_moto

PROGRAM = "tests.binding.uploading:passed_on"
HANG = "tests.binding.uploading:hang"
DELIVER = "tests.binding.uploading:deliver"


def put(bucket: Bucket, folder: Path, **asked: dict[str, Any]) -> None:
    bucket.put_sources(**{name: {"folder": str(folder), **more} for name, more in asked.items()})


def log_of(folder: Path) -> list[list[str]]:
    """Source key, index and process of each delivery."""
    return [line.split() for line in (folder / "log").read_text().splitlines()]


def deliver_runs(server: PrefectServer, night_id: str) -> Counter[tuple[str, str]]:
    ids = [run["id"] for run in children_of(server, night_id)]
    found = ask(server, "/task_runs/filter", {"flow_runs": {"id": {"any_": ids}}})
    named = [(run["name"], run["state_name"]) for run in found]
    return Counter(each for each in named if each[0].startswith(("deliver", "failed")))


@on_moto
async def test_each_row_ends_as_its_own_task_run_does(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly, tmp_path: Path
) -> None:
    put(bucket, tmp_path, a={}, mute={}, number={}, refused={}, z={})

    ended = await run_nightly(PROGRAM, upload_task=DELIVER, microbatch_size=3, failure_policy=9)

    assert list(ended.outcomes.values()) == ["published", *["failed"] * 3, "published"]
    assert (ended.state.name, ended.state.is_completed()) == ("ContractError", False)
    _, mute, number, refused, _ = ended.night.rows
    assert number is not None
    assert "upload task deliver returned Artifact(key=5" in number.cause
    assert mute is not None
    assert "upload task deliver returned None; expected an Artifact" in mute.cause
    assert mute.failure is not None
    assert (mute.failure.attempts, "tried" in mute.cause) == (1, False)
    assert refused is not None
    failure = refused.failure
    assert failure is not None
    assert (failure.kind.value, failure.type) == ("UploadFailed", "ConnectionRefusedError")
    assert (failure.stage, failure.attempts) == ("deliver", 2)

    assert (tmp_path / "a").read_bytes() == b"a"
    assert bucket.keys("out/in/") == []
    keys = read_manifest(ended.night.manifest).column("output_keys").to_pylist()
    assert sorted(list(each or []) for each in keys) == [[], [], [], ["a"], ["z"]]
    expected = {
        ("deliver in/a.json", "Completed"): 1,
        ("deliver in/mute.json", "Completed"): 1,
        ("failed in/mute.json", "ContractError"): 1,
        ("deliver in/number.json", "Completed"): 1,
        ("failed in/number.json", "ContractError"): 1,
        ("deliver in/refused.json", "Failed"): 1,
        ("deliver in/z.json", "Completed"): 1,
    }
    wait_until(lambda: deliver_runs(prefect_server, ended.night.id) == expected, 30)
    assert deliver_runs(prefect_server, ended.night.id) == expected

    assert Counter(key for key, _, _ in log_of(tmp_path)) == {
        "in/a.json": 1,
        "in/mute.json": 1,
        "in/number.json": 1,
        "in/refused.json": 2,
        "in/z.json": 1,
    }
    assert ["in/z.json", "4", str(os.getpid())] in log_of(tmp_path)
    assert f"--upload-task {DELIVER}" in ended.message


@on_moto
@pytest.mark.slow
async def test_a_row_that_cannot_be_recorded_is_not_taken_for_published(
    bucket: Bucket, run_nightly: RunNightly, tmp_path: Path, s3_server: S3Server
) -> None:
    put(bucket, tmp_path, a={}, b={})
    with s3_server.refusing("PUT", "/ledger/", (403, "AccessDenied")):
        ended = await run_nightly(PROGRAM, upload_task=DELIVER, limit=1)
    assert list(ended.outcomes.values()) == ["failed", "not_processed"]
    assert ended.state.name == "UploadFailed"
    assert "it was stored, but is not in the ledger" in ended.message

    for outcome in ("published", "skipped"):
        again = await run_nightly(PROGRAM, upload_task=DELIVER)
        assert list(again.outcomes.values()) == [outcome, outcome]
    assert sorted(key for key, _, _ in log_of(tmp_path)) == ["in/a.json"] * 2 + ["in/b.json"]


@on_moto
@pytest.mark.slow
async def test_on_ray_workers_some_of_which_die(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly, tmp_path: Path
) -> None:
    put(bucket, tmp_path, a={}, always={"dies": "always"}, once={"dies": "once"})

    ended = await run_nightly(PROGRAM, upload_task=f"{DELIVER}_or_die", upload_runner="ray")

    assert list(ended.outcomes.values()) == ["published", "failed", "published"]
    row = ended.night.rows[1]
    assert row is not None
    assert row.failure is not None
    assert (row.failure.kind.value, row.failure.type) == ("UploadFailed", "UploadCrashed")
    assert str(os.getpid()) not in [process for _, _, process in log_of(tmp_path)]

    def runs_by_state() -> Counter[str]:
        runs = deliver_runs(prefect_server, ended.night.id)
        return Counter(state for _, state in runs.elements())

    wait_until(lambda: runs_by_state().total() == 6, 30)
    assert runs_by_state() == {"Completed": 2, "Crashed": 4}


@on_moto
async def test_one_that_hangs_holds_up_neither_its_night_nor_a_cancel(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, tmp_path: Path
) -> None:
    put(bucket, tmp_path, a={}, hangs={}, z={})
    uploading.HELD.clear()
    settings = {"microbatch_size": 1, "max_active_microbatches": 1, "upload_task": HANG}
    places = (bucket.source, bucket.destination)
    with watching() as nights:
        running = asyncio.ensure_future(flow_state(nightly, PROGRAM, *places, **settings))
        while not (nights and nights[0].microbatches and nights[0].microbatches[1].is_open):
            assert not running.done()
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        nights[0].microbatches[1].stop.ask("cancelled: alone")
        try:
            state = await asyncio.wait_for(running, 25)
        finally:
            uploading.HELD.set()

    rows = read_manifest(nights[0].manifest).to_pylist()
    ends = {row["uri"].rpartition("/")[2]: row["row_outcome"] for row in rows}
    assert ends == {"a.json": "published", "hangs.json": "not_processed", "z.json": "published"}
    assert "cancelled: alone" in (state.message or "")


def test_a_task_without_a_name_of_its_own_is_known_to_have_none() -> None:
    assert name_of(uploading.deliver) == DELIVER
    assert name_of(uploading.deliver.with_options(retries=5)) == ""
    assert name_of(None) is None


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("tests.binding.uploading", "expected module:attribute"),
        ("tests.binding.uploading:nothing", "has no attribute nothing"),
        ("tests.binding.uploading:stored", "is a function; expected"),
        ("tests.binding.uploading:without_arguments", "is called with one argument"),
        ("no_such_module:x", "module no_such_module does not import"),
    ],
)
def test_what_is_no_upload_task_is_refused(task: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loaded_task(task)


def test_one_parent_a_task_run() -> None:
    with pytest.raises(UsageError, match="upload_group is 5; expected 1"):
        order_of("m:a", "s3://lake/in/", "s3://lake/out/", upload_task=DELIVER, upload_group=5)
