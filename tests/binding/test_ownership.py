"""One run at a time owns a (destination, program); a dead owner is followed and closed."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Running

from rayorch_prefect.binding import ownership
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.slots import Slot, SlotUnavailable
from rayorch_prefect.errors import OwnedElsewhere, UsageError
from rayorch_prefect.storage import S3Location, read_manifest
from rayorch_prefect.storage.lease import acquire, lease_file
from rayorch_prefect.storage.lease_file import LeaseFile, LeaseRecord
from rayorch_prefect.storage.owner import Owner
from tests.binding.conftest import RunNightly
from tests.services import Bucket, on_stores
from tests.storage.test_lease import ended_process

pytestmark = on_stores

SECONDS = 6.0
LEASE = "out/_rayorch/joined/lease.json"
SLOW = {f"s{i}": {"n": 2, "sleep": 0.5} for i in range(6)}


def record(bucket: Bucket) -> LeaseRecord:
    return LeaseRecord.from_json(bucket.get(LEASE))


def file_of(bucket: Bucket) -> LeaseFile:
    return lease_file(S3Location.parse(bucket.destination), "joined", SECONDS)


def outputs(bucket: Bucket) -> list[str]:
    return [key for key in bucket.keys("out/in/") if key.endswith(".txt")]


async def until_published(bucket: Bucket, running: asyncio.Future[Any]) -> None:
    while not outputs(bucket):
        assert not running.done(), running.result()
        await asyncio.sleep(0.1)


async def test_a_second_run_ends_and_names_the_owner(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    go_on = "go-on"
    bucket.put_sources(a={"n": 1}, b={"n": 1, "wait_for": f"s3://{bucket.name}/{go_on}"})
    first = asyncio.ensure_future(run_nightly(lease_seconds=SECONDS))
    await until_published(bucket, first)

    second = await run_nightly(lease_seconds=SECONDS)
    bucket.put(go_on, b"")
    ended = await first

    assert (second.state.is_failed(), second.state.name) == (True, "OwnedElsewhere")
    owner = record(bucket).owner
    for word in (ended.night.id, owner.run_name, owner.host, owner.since, "last heartbeat 20"):
        assert word in second.message
    with pytest.raises(OwnedElsewhere):
        await second.state.aresult()
    assert second.night.summary().sources == 0
    assert (ended.state.name, ended.night.summary().published) == ("Completed", 2)
    assert record(bucket).released
    assert (await run_nightly()).night.summary().skipped == 2


@pytest.mark.slow
async def test_a_dead_owner_is_followed_and_its_runs_closed(
    bucket: Bucket, run_nightly: RunNightly, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(a={"n": 2})
    parent, child = await left_running()
    owner = Owner(parent, "night-of-the-dead", "host-1", ended_process())
    acquire(file_of(bucket), owner, 600.0, False, time.sleep)

    ended = await run_nightly()

    assert ended.state.name == "Completed"
    async with get_client() as client:
        for run_id in (parent, child):
            run = await client.read_flow_run(UUID(run_id))
            assert run.state is not None
            assert run.state.is_crashed(), run.state
            assert "night-of-the-dead" in str(run.state.message)
            assert ended.night.id in str(run.state.message)


async def left_running() -> tuple[str, str]:
    """A flow run and its child, as a process that was killed leaves them."""
    found: list[str] = []

    @flow(persist_result=False)
    async def child() -> None:
        found.append(own_id())

    @flow(persist_result=False)
    async def parent() -> None:
        found.append(own_id())
        await child()

    await parent()
    async with get_client() as client:
        for run_id in found:
            await client.set_flow_run_state(UUID(run_id), Running(), force=True)
    return found[0], found[1]


def own_id() -> str:
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    return str(context.flow_run.id)


async def test_a_run_that_lost_its_lease_publishes_nothing_more(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(**SLOW)
    running = asyncio.ensure_future(run_nightly(microbatch_size=3, lease_seconds=SECONDS))
    await until_published(bucket, running)

    file_of(bucket).overwrite(LeaseRecord("token", Owner("id-2", "the-taker"), SECONDS).next())
    await asyncio.sleep(2.5)
    before = outputs(bucket)
    ended = await running

    assert outputs(bucket) == before
    assert 0 < len(before) < 6
    assert (ended.state.is_failed(), ended.state.name) == (True, "Failed")
    assert "was taken by flow run the-taker (id-2)" in ended.message
    summary = ended.night.summary()
    assert (summary.published, summary.not_processed) == (len(before), 6 - len(before))
    assert read_manifest(ended.night.manifest).num_rows == 6
    # Nor does it let go of what is another's.
    assert record(bucket).token == "token"


@pytest.mark.slow
async def test_every_orderly_end_lets_go(bucket: Bucket, run_nightly: RunNightly) -> None:
    bucket.put_sources(**SLOW)
    running = asyncio.ensure_future(run_nightly(lease_seconds=600.0))
    await until_published(bucket, running)
    assert not record(bucket).released

    running.cancel()
    ended = await running

    assert ended.state.is_cancelled()
    assert record(bucket).released
    bucket.put("in/odd.json", b"no JSON")
    await run_nightly(only=["in/odd.json"])
    assert record(bucket).released


async def test_without_conditions_and_slots_the_run_does_not_start(
    bucket: Bucket, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Slot:
        raise SlotUnavailable("the Prefect API gives no concurrency slot: 404")

    async def claimed() -> None:
        claim = ownership.Claim(
            S3Location.parse(bucket.destination), "joined", Owner("id", "name"), SECONDS, False
        )
        async with ownership.owning(claim, lambda _: None):
            pytest.fail("it owns what it cannot own")

    monkeypatch.setattr(ownership, "take_slot", refuse)
    with pytest.raises(UsageError, match="honours no conditional writes, and the Prefect API"):
        await claimed()
