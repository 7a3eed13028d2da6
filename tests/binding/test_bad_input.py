"""Bad input of every sort: told clearly, and every source is accounted for."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer, wait_until
from rayorch_prefect.errors import RayorchError, StoreError, UsageError
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import client as client_module
from rayorch_prefect.storage import probing as probing_module
from rayorch_prefect.storage import read_manifest
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.workloads.samples import pdf_bytes
from tests.binding.conftest import Ended, RunNightly
from tests.binding.test_night import ask
from tests.services import Bucket, S3Server, on_moto, on_stores
from tests.stores import SECRET_KEY

DOCUMENTS = "rayorch_prefect.workloads.documents:documents"
JOINED = "tests.binding.programs:joined"


async def refusal(**arguments: Any) -> RayorchError:
    """What a nightly run that never began raised."""
    state = await flow_state(nightly, **{"program": JOINED, **arguments})
    assert state.is_failed()
    error = await state.aresult(raise_on_failure=False)
    assert isinstance(error, RayorchError)
    assert str(error) in str(state.message)
    return error


def reasons(ended: Ended) -> dict[str, tuple[str, str | None]]:
    """Row outcome and reason by source key, as the manifest has them."""
    rows = read_manifest(ended.night.manifest).to_pylist()
    found = {row["uri"].rsplit("/")[-1]: (row["row_outcome"], row["reason"]) for row in rows}
    assert len(found) == len(rows) == len(ended.night.sources)
    return found


@on_stores
async def test_a_missing_bucket(bucket: Bucket, prefect_server: PrefectServer) -> None:
    missing = f"s3://{bucket.name}-nowhere"
    for source, destination in (
        (f"{missing}/in/", bucket.destination),
        (bucket.source, f"{missing}/out/"),
    ):
        error = await refusal(source=source, destination=destination)
        assert isinstance(error, StoreError)
        assert f"{missing}/" in str(error)
        assert "NoSuchBucket" in str(error)
        assert "check the name of the bucket and AWS_ENDPOINT_URL" in str(error)
    # The run owned the destination before it looked for sources.
    assert bucket.keys() == ["out/_rayorch/joined/lease.json"]


@on_stores
async def test_no_permission(
    bucket: Bucket, s3_server: S3Server, prefect_server: PrefectServer
) -> None:
    bucket.put_sources(a={"n": 1})
    for method, part in (("PUT", "/out/"), ("GET", f"/{bucket.name}")):
        with s3_server.refusing(method, part, (403, "AccessDenied")):
            error = await refusal(source=bucket.source, destination=bucket.destination)
        assert isinstance(error, StoreError)
        assert "ask for s3:ListBucket, s3:GetObject, s3:PutObject" in str(error)
    assert bucket.keys("out/in/") == []


@on_moto
async def test_no_permission_to_delete_is_enough_for_a_night(
    bucket: Bucket, s3_server: S3Server, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 1})
    with s3_server.refusing("DELETE", f"/{bucket.name}", (403, "AccessDenied")):
        ended = await run_nightly()
    assert ended.state.name == "Completed", ended.message

    def warnings() -> list[str]:
        body = {"logs": {"level": {"ge_": logging.WARNING}}}
        logs = ask(prefect_server, "/logs/filter", body)
        return [log["message"] for log in logs if bucket.name in log["message"]]

    assert wait_until(lambda: len(warnings()) > 0, 20)
    [warning] = warnings()
    assert f"small objects stay under s3://{bucket.name}/out/_rayorch/probe/" in warning


@pytest.mark.parametrize("bucket", ["rclone"], indirect=True)
async def test_credentials_that_do_not_fit(
    bucket: Bucket, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the one store checks them."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")

    error = await refusal(source=bucket.source, destination=bucket.destination)

    assert "the secret key does not fit" in str(error)
    assert "another-secret" not in str(error)
    assert SECRET_KEY not in str(error)


async def test_a_wrong_endpoint(
    bucket: Bucket, prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", closed)
    monkeypatch.setattr(client_module, "ATTEMPTS", 1)
    monkeypatch.setattr(probing_module, "_ATTEMPTS", 1)

    error = await refusal(source=bucket.source, destination=bucket.destination)

    assert isinstance(error, StoreError)
    assert closed in str(error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"microbatch_size": 0}, "microbatch_size is 0; expected at least 1"),
        ({"upload_group": 0}, "upload_group is 0; expected at least 1"),
        ({"limit": 0}, "limit is 0; expected at least 1"),
        ({"program": "no_such_module:x"}, "module no_such_module does not import"),
        ({"program": "tests.binding.programs"}, "has several Programs"),
        ({"program": "tests.binding.programs:below_the_root"}, "one output on the root"),
    ],
)
async def test_wrong_arguments(
    prefect_server: PrefectServer, arguments: dict[str, Any], said: str
) -> None:
    error = await refusal(source="s3://lake/in/", destination="s3://lake/out/", **arguments)
    assert said in str(error)


def test_one_program_in_a_module_needs_no_attribute() -> None:
    from rayorch_prefect.binding.loading import load_program

    assert load_program("tests.binding.single").name == "single"
    with pytest.raises(UsageError, match=r"joined.*unpublishable"):
        load_program("tests.binding.programs")


def pdf(text: str) -> bytes:
    return pdf_bytes([text])


@on_stores
@pytest.mark.parametrize("size", [64, pytest.param(1, marks=pytest.mark.slow)])
async def test_sources_that_vanish_change_or_are_empty_fail_alone(
    bucket: Bucket, s3_server: S3Server, run_nightly: RunNightly, size: int
) -> None:
    for name in ("changed", "good", "gone"):
        bucket.put(f"in/{name}.pdf", pdf(name))
    bucket.put("in/zero.pdf", b"")

    def remove() -> None:
        s3_client().delete_object(Bucket=bucket.name, Key="in/gone.pdf")

    s3_server.before("GET", f"{bucket.name}/in/gone.pdf", remove)
    s3_server.before(
        "GET",
        f"{bucket.name}/in/changed.pdf",
        lambda: bucket.put("in/changed.pdf", pdf("another text")),
    )

    ended = await run_nightly(DOCUMENTS, microbatch_size=size)

    assert (ended.state.name, ended.state.is_failed()) == ("RecordFailure", True)
    rows = {row.source.key: row for row in ended.night.rows if row}
    assert rows["in/good.pdf"].outcome == "published"
    failures = {key: row.failure for key, row in rows.items() if row.failure}
    assert {key: (each.kind.value, each.type) for key, each in failures.items()} == {
        "in/changed.pdf": ("RecordFailure", "SourceChanged"),
        "in/gone.pdf": ("RecordFailure", "SourceMissing"),
        "in/zero.pdf": ("RecordFailure", "Empty"),
    }
    assert "run again to take the new content" in failures["in/changed.pdf"].message
    assert "was listed and is gone" in failures["in/gone.pdf"].message
    outputs = [key for key in bucket.keys("out/") if not key.startswith("out/_rayorch/")]
    assert outputs == ["out/in/good.pdf.json", "out/in/good.pdf.md"]


@on_moto
async def test_errors_with_texts_that_not_every_place_takes(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    """As names of files that are no UTF-8 (of os.fsdecode), or what a tool printed."""
    bucket.put_sources(a={"text": "no file caf\udce9.pdf"}, b={"text": "\x1b[31mno\x00"})

    ended = await run_nightly("tests.binding.programs:telling")

    assert (ended.state.name, ended.state.is_failed()) == ("AttemptsExhausted", True)
    assert "no file caf\\udce9.pdf" in ended.message
    assert "\\x1b[31mno\\x00" in ended.message
    causes = read_manifest(ended.night.manifest).column("cause").to_pylist()
    assert [str(cause).rpartition(": ")[2] for cause in causes] == [
        "no file caf\\udce9.pdf",
        "\\x1b[31mno\\x00",
    ]
    assert ended.night.report


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("greedy", "DoesNotFit: stage Work: a worker needs CPU 512, and no node has that"),
        pytest.param("stillborn", "StageStartError: stage Stillborn", marks=pytest.mark.slow),
    ],
)
async def test_stages_that_cannot_start_leave_every_source_unprocessed(
    bucket: Bucket, run_nightly: RunNightly, program: str, said: str
) -> None:
    bucket.put_sources(a={"n": 1}, b={"n": 2})

    ended = await run_nightly(f"tests.binding.programs:{program}", microbatch_size=1)

    assert (ended.state.name, ended.state.is_failed()) == ("Failed", True)
    assert "2 sources: 0 published, 0 failed, 0 dropped, 0 skipped, 2 not processed" in (
        ended.message
    )
    assert said in ended.message
    found = reasons(ended)
    assert set(found) == {"a.json", "b.json"}
    for outcome, reason in found.values():
        assert outcome == "not_processed"
        assert said in str(reason)


@pytest.mark.slow
async def test_a_generator_instead_of_a_list_is_the_programs_defect(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 2}, b={"n": 1}, c={"fail": "Encrypted"})

    ended = await run_nightly("tests.binding.programs:generating", failure_policy=3)

    assert (ended.state.name, ended.state.is_failed()) == ("ContractError", True)
    assert ended.outcomes == dict.fromkeys(["in/a.json", "in/b.json", "in/c.json"], "failed")
    assert "stage Generating" in ended.message
    assert "generator" in ended.message
    assert bucket.keys("out/in/") == []
