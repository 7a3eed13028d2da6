"""The concurrency limit of 1 that keeps runs apart where the store cannot."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from prefect.client.orchestration import get_client

from rayorch_prefect.binding.ownership import Claim, owning
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.slots import (
    SLOT_SECONDS,
    Slot,
    drop_limit,
    limit_name,
    release_slot,
    renew_slot,
    take_slot,
)
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.owner import Owner
from tests.services import Bucket, on_moto

REPOSSESSED = 15.0
"""Seconds between two looks of a Prefect server for leases that have expired."""


def run_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
def name(prefect_server: PrefectServer) -> str:
    return limit_name(S3Location("bucket", uuid.uuid4().hex), "a/program of mine")


def taken(name: str) -> Slot:
    slot = take_slot(name, run_id())
    assert isinstance(slot, Slot)
    return slot


def test_one_at_a_time(name: str) -> None:
    slot = taken(name)
    limit = take_slot(name, run_id())
    assert isinstance(limit, str)
    assert renew_slot(slot)
    release_slot(slot)
    assert not renew_slot(slot)
    release_slot(taken(name))


def test_of_two_that_drop_a_limit_one_drops_it(name: str) -> None:
    taken(name)
    seen = [take_slot(name, run_id()) for _ in range(2)]
    assert seen[0] == seen[1]
    assert isinstance(seen[0], str)
    drop_limit(seen[0])
    mine = taken(name)
    drop_limit(seen[0])
    assert isinstance(take_slot(name, run_id()), str)
    assert renew_slot(mine)


@pytest.mark.slow
def test_a_slot_is_freed_after_its_holder_has_died(name: str) -> None:
    began = time.monotonic()
    taken(name)
    while isinstance(take_slot(name, run_id()), str):
        assert time.monotonic() - began < SLOT_SECONDS + REPOSSESSED + 60, "never freed"
        time.sleep(1)
    assert time.monotonic() - began >= SLOT_SECONDS - 1


@pytest.mark.slow
@on_moto
async def test_a_slot_that_nobody_can_free_is_taken_all_the_same(
    bucket: Bucket, prefect_server: PrefectServer
) -> None:
    destination = S3Location.parse(bucket.destination)
    name = limit_name(destination, "joined")
    await asyncio.to_thread(taken, name)
    async with get_client() as client:
        before = (await client.read_global_concurrency_limit_by_name(name)).id
    claim = Claim(destination, "joined", Owner(run_id(), "second"), 6.0, conditional=False)

    began = time.monotonic()
    await own(claim)
    took = time.monotonic() - began

    async with get_client() as client:
        limit = await client.read_global_concurrency_limit_by_name(name)
    assert (limit.id != before, limit.active_slots) == (True, 0)
    assert took < SLOT_SECONDS, "the server freed it: nothing is shown"


async def own(claim: Claim) -> None:
    from prefect import flow

    @flow(persist_result=False)
    async def owning_flow() -> None:
        async with owning(claim, lambda error: None):
            pass

    await owning_flow()
