"""What of the sources runs: dry runs, limits, single keys, all again; and uploads in groups."""

from __future__ import annotations

import httpx
import pytest

from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until
from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage import RowOutcome, read_manifest
from tests.binding.conftest import Ended, RunNightly, recorded
from tests.services import Bucket, S3Server


def upload_runs(server: PrefectServer, ended: Ended, prefix: str = "upload ") -> dict[str, str]:
    """State name by name of the night's upload task runs, or others that are named so."""
    body = {
        "flow_runs": {"parent_flow_run_id": {"any_": [ended.night.id]}},
        "task_runs": {"name": {"like_": prefix}},
    }
    answer = httpx.post(f"{server.api_url}/task_runs/filter", json=body, trust_env=False)
    return {run["name"].removeprefix(prefix): run["state_name"] for run in answer.json()}


async def test_a_dry_run_plans_and_leaves_no_trace(bucket: Bucket, run_nightly: RunNightly) -> None:
    bucket.put_sources(a={"n": 1}, b={"n": 1}, c={"fail": "Encrypted"})
    recorded(bucket, a=RowOutcome.PUBLISHED, b=RowOutcome.PUBLISHED, c=RowOutcome.FAILED)
    bucket.put_sources(b={"n": 2}, d={"n": 1})
    before = bucket.keys()

    ended = await run_nightly(dry_run=True)

    assert (ended.state.name, ended.state.is_completed()) == ("DryRun", True)
    assert ended.message == (
        "nothing was started. 4 sources: 1 new or again, 1 changed, 1 published before, "
        "1 failed before, 2 to run, 1 skipped, 1 counted again"
    )
    assert ended.night.summary().not_processed == 2
    assert ended.night.live_metrics() is None
    assert bucket.keys() == before


async def test_only_the_named_sources_then_a_limit_that_is_no_fault(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 1}, b={"n": 1}, c={"n": 1}, d={"n": 1})

    named = await run_nightly(only=["in/a.json", f"{bucket.source}c.json"])
    ended = await run_nightly(limit=1)
    rest = await run_nightly(limit=1, dry_run=True)

    assert named.outcomes == {"in/a.json": "published", "in/c.json": "published"}
    assert named.state.name == "Completed"
    assert (ended.state.name, ended.state.is_completed()) == ("Completed", True)
    assert ended.outcomes == {
        "in/a.json": "skipped",
        "in/b.json": "published",
        "in/c.json": "skipped",
        "in/d.json": "not_processed",
    }
    reason = "left out by the run's limit of 1"
    assert reason in ended.message
    assert "next: to run the sources that were left out: rayorch-prefect run" in ended.message
    rows = read_manifest(ended.night.manifest).to_pylist()
    assert {row["uri"][-6:]: row["reason"] for row in rows if row["reason"]} == {"d.json": reason}
    assert "4 sources: 1 new or again, 3 published before, 1 to run, 3 skipped" in rest.message
    assert "left out" not in rest.message


async def test_an_unknown_key_is_refused(bucket: Bucket, run_nightly: RunNightly) -> None:
    bucket.put_sources(a={"n": 1})

    ended = await run_nightly(only=["in/a.json", "a.json", "in/b.json"])

    assert ended.state.is_failed()
    with pytest.raises(UsageError) as told:
        await ended.state.aresult()
    assert "no source 'a.json', 'in/b.json' under" in str(told.value)
    assert "such as 'in/a.json'" in str(told.value)
    assert bucket.keys("out/") == ["out/_rayorch/joined/lease.json"]


async def test_force_runs_what_the_ledger_settles(bucket: Bucket, run_nightly: RunNightly) -> None:
    bucket.put_sources(a={"n": 2}, b={"fail": "Encrypted"})
    recorded(bucket, a=RowOutcome.PUBLISHED, b=RowOutcome.FAILED)
    key = "out/in/a.json.txt"
    bucket.put(key, b"spoilt")

    forced = await run_nightly(force=True, failure_policy=1)
    after = await run_nightly(dry_run=True)

    assert forced.outcomes == {"in/a.json": "published", "in/b.json": "failed"}
    assert [row.remembered for row in forced.night.rows if row] == [False, False]
    assert bucket.get(key) == b"0,1"
    assert after.outcomes == {"in/a.json": "skipped", "in/b.json": "failed"}


async def test_an_empty_prefix_is_noticed_unless_allowed(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put("inn/a.json", b"{}")

    ended = await run_nightly()
    allowed = await run_nightly(allow_empty=True)

    assert (ended.state.name, ended.state.is_failed()) == ("NoSources", True)
    assert ended.message == (
        f"no object under {bucket.source}, expected sources there; "
        f"check the prefix: s3://{bucket.name}/ holds inn/, out/"
    )
    assert (allowed.state.name, allowed.state.is_completed()) == ("Completed", True)
    assert allowed.message == f"no sources under {bucket.source}"


async def test_uploads_in_groups(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 1} for i in range(7)})

    ended = await run_nightly(upload_group=3)

    assert set(ended.outcomes.values()) == {"published"}
    assert ended.night.summary().upload_task_runs < 7
    runs = upload_runs(prefect_server, ended)
    assert len(runs) == ended.night.uploads
    assert set(runs.values()) == {"Completed"}
    assert any(name.endswith(".json and 2 more") for name in runs)
    assert len(bucket.keys("out/_rayorch/joined/ledger/")) == 7
    assert set((await run_nightly(dry_run=True)).outcomes.values()) == {"skipped"}


async def test_a_group_closes_in_time(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    """The first would wait for ever: the last child of the other waits for its output."""
    bucket.put_sources(a={"n": 1}, b={"n": 1, "wait_for": f"{bucket.destination}in/a.json.txt"})

    ended = await run_nightly(upload_group=100)

    assert ended.outcomes == {"in/a.json": "published", "in/b.json": "published"}
    assert set(upload_runs(prefect_server, ended)) == {"in/a.json", "in/b.json"}


async def test_a_failed_upload_fails_its_own_parent_in_a_group(
    bucket: Bucket, s3_server: S3Server, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 2}, b={"n": 3}, c={"n": 1})

    with s3_server.refusing("PUT", "/out/in/b.json"):
        ended = await run_nightly(upload_group=3, upload_tries=2)
    after = await run_nightly(dry_run=True)

    assert (ended.state.name, ended.state.is_failed()) == ("UploadFailed", True)
    assert ended.outcomes == {
        "in/a.json": "published",
        "in/b.json": "failed",
        "in/c.json": "published",
    }
    assert "UploadFailed" in upload_runs(prefect_server, ended).values()

    # A group's is named after its first source: who failed has one of its own.
    def shown() -> bool:
        runs = upload_runs(prefect_server, ended) | upload_runs(prefect_server, ended, "failed ")
        return runs.get("in/b.json") == "UploadFailed"

    wait_until(shown, 30)
    assert shown()
    # What failed at the store alone is to run again.
    assert after.outcomes == {
        "in/a.json": "skipped",
        "in/b.json": "not_processed",
        "in/c.json": "skipped",
    }
