"""Small nights of the whole kind: S3 server, Prefect server, Ray."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.summaries import NightSummary
from rayorch_prefect.errors import UsageError
from rayorch_prefect.flows.microbatch import microbatch
from rayorch_prefect.flows.nightly import nightly, run_night
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.replay.replaying import Replay
from rayorch_prefect.storage import read_manifest
from tests.binding.conftest import RunNightly
from tests.binding.programs import mortal_program
from tests.binding.small_night import run_small_night
from tests.services import Bucket, S3Server, on_stores


def ask(server: PrefectServer, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.api_url}{path}", json=body, trust_env=False)
    answer.raise_for_status()
    return answer.json()


def children_of(server: PrefectServer, night_id: str) -> list[dict[str, Any]]:
    body = {"flow_runs": {"parent_flow_run_id": {"any_": [night_id]}}, "sort": "NAME_ASC"}
    found: list[dict[str, Any]] = ask(server, "/flow_runs/filter", body)
    return found


def task_names(server: PrefectServer, flow_run_ids: list[str]) -> list[str]:
    body = {"flow_runs": {"id": {"any_": flow_run_ids}}, "limit": 200}
    return sorted(run["name"] for run in ask(server, "/task_runs/filter", body))


def tables(server: PrefectServer, flow_run_id: str) -> list[dict[str, Any]]:
    body = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}, "type": {"any_": ["table"]}}}
    return list(ask(server, "/artifacts/filter", body))


@on_stores
async def test_all_is_published_and_shown(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly, tmp_path: Path
) -> None:
    bucket.put_sources(a={"n": 3}, b={"n": 0}, c={"n": 12}, d={"n": 1}, e={"n": 2})

    ended = await run_nightly(
        microbatch_size=3,
        max_active_microbatches=2,
        upload_workers=4,
        record=str(tmp_path / "recordings"),
    )

    assert (ended.state.name, ended.state.is_completed()) == ("Completed", True)
    assert bucket.get("out/in/c.json.txt") == ",".join(map(str, range(12))).encode()
    outputs = [key for key in bucket.keys("out/") if not key.startswith("out/_rayorch/")]
    assert outputs == [
        f"out/in/{name}.json.{ending}" for name in "abcde" for ending in ("json", "txt")
    ]
    children = children_of(prefect_server, ended.night.id)
    assert [(run["name"], run["state_name"]) for run in children] == [
        ("microbatch 0: 3 sources", "Completed"),
        ("microbatch 1: 2 sources", "Completed"),
    ]
    # Stored parameters do not grow with the slice: its ends are all that they name.
    parameters = json.dumps(children[0]["parameters"])
    assert [f"in/{name}.json" in parameters for name in "abc"] == [True, False, True]
    assert len(parameters) < 1000
    manifest = read_manifest(ended.night.manifest).to_pylist()
    assert sorted(len(row["output_keys"]) for row in manifest) == [2] * 5
    # What the manifest has is not kept: a night of many parents stays small.
    for kept, given in zip(ended.night.rows, ended.night.sources, strict=True):
        assert kept is not None
        assert kept.source is given
        assert kept.artifacts == ()
    names = task_names(prefect_server, [run["id"] for run in children])
    uploads = [f"upload in/{name}.json" for name in "abcde"]
    assert names == [*(f"manifest of microbatch {i}" for i in range(2)), *uploads]
    summary = ended.night.summary()
    assert (summary.sources, summary.published, summary.children) == (5, 5, 18)
    assert (summary.flow_runs, summary.upload_task_runs) == (3, 5)
    assert summary.first_upload_s is not None
    assert 0 < summary.first_upload_s <= summary.wall_s
    (recorded,) = (tmp_path / "recordings").iterdir()
    replay = Replay(Recording(recorded))
    replay.run(check=True)
    # Which of the microbatches is admitted first is not said.
    keys = [key for admitted in replay.recording.keys.values() for key in admitted]
    (key,) = [key for key in keys if key.endswith("in/c.json")]
    assert replay.story(key, "11").splitlines()[-1] == "parent: COMPLETED"


async def test_a_rerun_skips_what_is_published_and_starts_nothing(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 3}, b={"n": 2})
    await run_nightly()
    bucket.put_sources(c={"n": 1})

    second = await run_nightly()
    third = await run_nightly()

    assert second.outcomes == {
        "in/a.json": "skipped",
        "in/b.json": "skipped",
        "in/c.json": "published",
    }
    assert set(third.outcomes.values()) == {"skipped"}
    assert "3 sources: 0 published, 0 failed, 0 dropped, 3 skipped" in third.message
    assert children_of(prefect_server, third.night.id) == []
    assert read_manifest(third.night.manifest).num_rows == 3


def test_a_source_that_is_as_it_was_two_versions_ago_is_published_again(bucket: Bucket) -> None:
    for version, n in enumerate((2, 3, 2)):
        bucket.put_sources(a={"n": n})
        for end in ("published", "skipped"):
            run_id = f"{end}-{version}"
            assert run_small_night({}, bucket.source, bucket.destination, run_id) == {end: 1}
        assert bucket.get("out/in/a.json.txt").decode() == ",".join(f"a/{i}" for i in range(n))


async def test_failed_rows_name_the_state_fill_the_tables_and_are_remembered(
    bucket: Bucket,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    bucket.put_sources(a={"n": 3}, b={"n": 5, "spoilt": 2}, c={"fail": "Encrypted"}, d={"n": 1})

    ended = await run_nightly(microbatch_size=2)
    again = await run_nightly(failure_policy="2, stop=encrypted")

    assert (ended.state.is_failed(), ended.state.name) == (True, "GroupFailure")
    assert "2 published, 2 failed" in ended.message
    assert "--retry-failed" in ended.message
    assert ended.outcomes["in/b.json"] == "failed"
    states = [run["state_name"] for run in children_of(prefect_server, ended.night.id)]
    assert states == ["GroupFailure", "RecordFailure"]
    (table,) = tables(prefect_server, ended.night.id)
    assert table["key"] == "failed-joined"
    lines = json.loads(table["data"])
    assert [(line["source key"], line["kind"], line["type"], line["child"]) for line in lines] == [
        ("in/b.json", "GroupFailure", "Spoilt", 2),
        ("in/c.json", "RecordFailure", "Encrypted", None),
    ]
    assert not [key for key in bucket.keys("out/in/") if "/b.json" in key or "/c.json" in key]
    assert ended.night.summary().failed == {"Spoilt": 1, "Encrypted": 1}
    # They count again without running, and are tolerated or not as the new run says.
    assert (again.state.name, again.state.is_completed()) == ("PartiallyCompleted", True)
    unmatched = "no failure was of type encrypted; there were Encrypted, Spoilt. Did you mean Encry"
    assert caplog.text.count(unmatched) == 1
    ends = ("skipped", "failed", "failed", "skipped")
    assert again.outcomes == dict(zip((f"in/{name}.json" for name in "abcd"), ends, strict=True))
    assert children_of(prefect_server, again.night.id) == []
    bucket.put_sources(b={"n": 2})
    mended = await run_nightly(failure_policy=1)
    assert (mended.state.name, mended.outcomes["in/b.json"]) == ("PartiallyCompleted", "published")


async def test_gaps_are_named_in_state_and_manifest(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 3, "gap": 1}, b={"n": 2})

    ended = await run_nightly()

    assert ended.state.name == "PartiallyCompleted"
    rows = {row["uri"]: row for row in read_manifest(ended.night.manifest).to_pylist()}
    row = rows[f"{bucket.source}a.json"]
    assert (row["row_outcome"], row["missing"], row["children"]) == ("published", ["1"], 3)
    assert bucket.get("out/in/a.json.json") == b'{"missing":[1]}'
    retried = await run_nightly(retry_failed=True, dry_run=True)
    assert retried.outcomes == {"in/a.json": "not_processed", "in/b.json": "skipped"}


async def test_a_value_that_cannot_be_published_is_the_programs_defect(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 1})

    ended = await run_nightly("tests.binding.programs:unpublishable", failure_policy=1)

    assert (ended.state.is_failed(), ended.state.name) == (True, "ContractError")
    assert "a published output is bytes" in ended.message


async def test_a_row_whose_record_cannot_be_kept_is_not_called_published(
    bucket: Bucket, s3_server: S3Server, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 2})

    with s3_server.refusing("PUT", "/ledger/"):
        ended = await run_nightly(upload_tries=1)

    assert ended.state.name == "UploadFailed"
    assert "1 to run" in (await run_nightly(dry_run=True)).message


async def test_a_run_that_breaks_off_accounts_for_every_source(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, tmp_path: Path
) -> None:
    bucket.put_sources(a={"n": 1}, b={"n": 2}, fatal={"n": 0}, z={"n": 3})
    program = mortal_program(tmp_path / "dead")
    numbers: list[NightSummary] = []

    @flow(persist_result=False)
    async def own_nightly() -> State[Any]:
        state, summary = await run_night(
            program, bucket.source, bucket.destination, microbatch_size=1, max_active_microbatches=1
        )
        numbers.append(summary)
        return state

    state = await flow_state(own_nightly)

    assert (state.is_failed(), state.name) == (True, "Failed")
    assert "2 published, 0 failed, 0 dropped, 0 skipped, 2 not processed" in str(state.message)
    assert "StageStartError: stage Mortal" in str(state.message)
    rows = {row["uri"]: row for row in read_manifest(numbers[0].manifest).to_pylist()}
    assert {uri.rsplit("/")[-1]: row["row_outcome"] for uri, row in rows.items()} == {
        "a.json": "published",
        "b.json": "published",
        "fatal.json": "not_processed",
        "z.json": "not_processed",
    }
    assert "Mortal" in rows[f"{bucket.source}z.json"]["reason"]
    assert (numbers[0].not_processed, numbers[0].flow_runs) == (2, 4)


async def test_wrong_arguments_fail_the_flow_at_once(
    bucket: Bucket, prefect_server: PrefectServer
) -> None:
    state = await flow_state(nightly, "nowhere:x", bucket.source, bucket.destination)
    assert state.is_failed()
    with pytest.raises(UsageError, match="module nowhere does not import"):
        await state.aresult()


async def test_a_night_outside_a_flow_is_refused(bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="inside a Prefect flow"):
        await run_night("tests.binding.programs:joined", bucket.source, bucket.destination)


async def test_a_microbatch_by_itself_is_refused(prefect_server: PrefectServer) -> None:
    state = await flow_state(microbatch, "no-night", 0, 1, "a", "a")
    with pytest.raises(UsageError, match="started by the nightly flow"):
        await state.aresult()


@pytest.mark.slow
async def test_a_cancelled_night_stops_publishing(
    bucket: Bucket, run_nightly: RunNightly, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 4, "sleep": 0.5} for i in range(8)})
    running = asyncio.ensure_future(run_nightly(microbatch_size=2))
    while not bucket.keys("out/in/"):
        await asyncio.sleep(0.1)

    running.cancel()
    ended = await running

    assert ended.state.is_cancelled()
    assert set(ended.outcomes.values()) == {"published", "not_processed"}
    left = bucket.keys("out/")
    await asyncio.sleep(3)
    assert bucket.keys("out/") == left
    assert len([key for key in left if key.endswith(".txt")]) < 8


async def test_a_backend_that_stays_down_leaves_the_rest_not_processed(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 0}, b={"n": 4}, c={"n": 5})

    ended = await run_nightly("tests.binding.programs:asking")

    assert ended.state.is_failed()
    assert ended.outcomes == {
        "in/a.json": "published",
        "in/b.json": "not_processed",
        "in/c.json": "not_processed",
    }
    assert "BackendDown: stage unreachable" in ended.message
    assert "port 8000" in ended.message
