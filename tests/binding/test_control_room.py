"""What a night leaves in Prefect: artifacts and task runs that tell how it ended, and why."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from prefect.logging.handlers import APILogHandler

from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.objects import get_object
from tests.binding.conftest import Ended, RunNightly
from tests.binding.leaks import by_blocks_alone, leaks, ray_logs
from tests.binding.test_night import ask, children_of
from tests.services import Bucket, S3Server
from tests.stores import SECRET_KEY


def artifacts(server: PrefectServer, flow_run_id: str, type: str) -> list[dict[str, Any]]:
    body = {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}, "type": {"any_": [type]}}}
    return list(ask(server, "/artifacts/filter", body))


def failed_runs(server: PrefectServer, flow_run_ids: list[str]) -> dict[str, str]:
    """State name by task run name."""
    body = {
        "flow_runs": {"id": {"any_": flow_run_ids}},
        "task_runs": {"state": {"type": {"any_": ["FAILED"]}}},
    }
    return {run["name"]: run["state_name"] for run in ask(server, "/task_runs/filter", body)}


async def test_a_night_is_seen_and_understood_in_prefect(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret, token, session, api_key, key = (f"{name}{uuid4().hex}" for name in "stapk")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key)
    monkeypatch.setenv("AWS_SESSION_TOKEN", session)
    monkeypatch.setenv("SCANNER_API_KEY", api_key)
    bucket.put_sources(
        a={"n": 3},
        b={"n": 5, "spoilt": 2, "saying": f" by {api_key}"},
        c={"fail": "Encrypted"},
        d={"n": 4, "sleep": 0.3, "warn": 1, "saying": f" by {api_key}"},
    )

    with by_blocks_alone(bucket, s3_server, "OFTHEBLOCK", secret, token) as (places, used):
        ended = await run_nightly(microbatch_size=2, **places)

    # Sources were read, and outputs written, by workers that knew no more than the blocks' names.
    assert used == {"OFTHEBLOCK"}
    assert f"--source {places['source']}" in ended.message
    first, second = (run["id"] for run in children_of(prefect_server, ended.night.id))
    for run_id in (first, second):
        (progress,) = artifacts(prefect_server, run_id, "progress")
        assert (progress["key"], progress["data"]) == ("progress-joined-microbatch", 100.0)
        assert "2 of 2 done: 2 sources: 1 published, 1 failed" in progress["description"]
        (summary,) = artifacts(prefect_server, run_id, "markdown")
        assert summary["key"] == "summary-joined-microbatch"
        assert "| 1 | 1 | 0 | 0 | 0 |" in summary["data"]
    assert failed_runs(prefect_server, [first, second]) == {
        "failed in/b.json": "GroupFailure",
        "failed in/c.json": "RecordFailure",
    }
    (summary,) = artifacts(prefect_server, ended.night.id, "markdown")
    assert (summary["key"], summary["description"]) == (
        "summary-joined",
        "GroupFailure: 4 sources: 2 published, 2 failed, 0 dropped, 0 skipped, 0 not processed",
    )
    text = summary["data"]
    assert "| 2 | 2 | 0 | 0 | 0 |" in text
    assert "in/b.json: GroupFailure\\[Spoilt\\] in stage Work at child 2" in text
    assert "spoils all by \\*\\*\\*" in text
    assert " --retry-failed\n```" in text
    check_stages(text)
    check_report(ended, text)
    assert ended.night.control.ended == {"published": 2, "failed": 2}
    # What stages log stands in the log of the run whose source it is about, and in no other.
    await APILogHandler.aflush()
    # That a source failed is said by its task run's state, not by lines of Prefect's besides.
    assert len(logged(prefect_server, first, 40)) == 1
    said = {
        run_id: [line for line in logged(prefect_server, run_id, 30) if line.startswith("stage ")]
        for run_id in (first, second, ended.night.id)
    }
    assert said == {
        first: [],
        second: ["stage Work, in/d.json, child 1: ocr: child 1 spoils all by ***, or nearly"],
        ended.night.id: [],
    }
    # Ray and its workers were started with the last one in their environment.
    secrets = [secret, token, session, api_key, key, SECRET_KEY]
    await asyncio.to_thread(check_secrets, secrets, prefect_server, bucket)


def check_secrets(secrets: list[str], server: PrefectServer, bucket: Bucket) -> None:
    """Nothing that is kept has one; where each is put on purpose it is found."""
    assert leaks(secrets, server, bucket) == set()
    ask(server, "/variables/", {"name": f"leak_{uuid4().hex}", "value": secrets[0]})
    put = [server.log.parent / "leaked", ray_logs() / "logs" / "leaked"]
    for path, secret in zip(put, secrets[1:], strict=False):
        path.write_text(f"said {secret} aloud")
    bucket.put("out/_rayorch/leaked", secrets[3].encode())
    found = leaks(secrets, server, bucket)
    database = {name for name in found if "prefect.db" in name}
    assert database
    assert found - database == {*map(str, put), "out/_rayorch/leaked"}


def logged(server: PrefectServer, flow_run_id: str, level: int) -> list[str]:
    levels = {"ge_": level, "le_": level}
    body = {"logs": {"flow_run_id": {"any_": [flow_run_id]}, "level": levels}}
    return [each["message"] for each in ask(server, "/logs/filter", body)]


def check_stages(text: str) -> None:
    lines = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines()}
    assert lines["| Work"][1:3] == ["child", "1"]
    # Children of a barred parent may not have been sent at all.
    assert 8 <= int(lines["| Work"][4]) <= 12
    assert lines["| Work"][6] != "0%"
    assert "Busiest: " in text


def check_report(ended: Ended, summary: str) -> None:
    uri = f"{ended.night.manifest}report.html"
    assert uri in summary
    location = S3Location.parse(ended.night.manifest)
    content = get_object(location, f"{location.prefix}report.html")
    assert content is not None
    page = content.decode()
    assert "<h1>joined, night: GroupFailure</h1>" in page
    assert "<polygon" in page
    assert ">in/b.json</td><td>Spoilt</td>" in page
    assert "<td>Work</td><td>2</td>" in page
    assert "spoils all by ***" in page
