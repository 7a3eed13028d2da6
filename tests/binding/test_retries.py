"""A night that Prefect's `retries` runs again goes on where the first try ended."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from rayorch_prefect.storage.client import ATTEMPTS
from tests.binding.test_night import children_of
from tests.services import Bucket, S3Server, on_moto

NAMES = "abcde"


async def retried(
    bucket: Bucket, retries: int = 1, **settings: Any
) -> tuple[State[Any], list[Night]]:
    again = nightly.with_options(retries=retries, retry_delay_seconds=0)
    with watching() as nights:
        state = await flow_state(
            again,
            "tests.binding.programs:joined",
            bucket.source,
            bucket.destination,
            microbatch_size=2,
            **settings,
        )
    return state, nights


def worked(log: Path) -> Counter[str]:
    return Counter(log.read_text().splitlines())


@on_moto
async def test_a_second_try_runs_only_what_the_first_left(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    ray_cluster: str,
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    bucket.put_sources(**{name: {"n": 2, "log": str(log)} for name in NAMES})
    # One upload fails for good in the first try, after as many requests as it makes in all.
    rule = s3_server.proxy.on(
        "PUT", f"/{bucket.name}/out/in/b.json", times=ATTEMPTS, answer=(500, "InternalError")
    )
    try:
        state, nights = await retried(bucket, upload_tries=1)
    finally:
        s3_server.proxy.remove(rule)

    first, second = nights
    assert first.id == second.id
    assert first.summary().failed == {"StoreUnavailable": 1}
    assert (state.is_completed(), state.name) == (True, "Completed")
    assert second.tally().published == 1
    assert second.tally().skipped == 4
    assert worked(log) == {f"{n}/{i}": 2 if n == "b" else 1 for n in NAMES for i in range(2)}
    rows = read_manifest(second.manifest).to_pylist()
    assert Counter(row["row_outcome"] for row in rows) == {"published": 1, "skipped": 4}
    assert sorted(row["uri"][-6] for row in rows) == list(NAMES)
    # The first try's child flow runs keep their ends, the second's are new.
    states = [run["state_name"] for run in children_of(prefect_server, second.id)]
    assert sorted(states) == ["Completed", "Completed", "Completed", "UploadFailed"]
    assert {key[len("out/in/")] for key in bucket.keys("out/in/")} == set(NAMES)


@pytest.mark.slow
@on_moto
async def test_what_failed_for_good_is_not_run_again_by_a_retry(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    bucket.put_sources(
        a={"n": 2, "log": str(log)}, b={"n": 2, "spoilt": 1, "log": str(log)}, c={"fail": "Torn"}
    )

    state, nights = await retried(bucket)

    assert len(nights) == 2
    assert (state.is_failed(), state.name) == (True, "GroupFailure")
    assert nights[1].microbatches == []
    assert nights[1].tally().remembered == 2
    assert set(worked(log).values()) == {1}
    assert read_manifest(nights[1].manifest).num_rows == 3
