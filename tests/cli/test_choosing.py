"""Dry runs and early ends on the command line: lines that say what is what, nothing started."""

from __future__ import annotations

import json

import pytest

from rayorch_prefect.binding.opening import loaded
from rayorch_prefect.binding.prefect_server import using_api
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.cli.main import main
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import RowOutcome, S3Location, list_sources
from tests.services import Bucket, S3Server

PROGRAM = "tests.binding.programs:joined"


def run(bucket: Bucket, *more: str) -> int:
    arguments = ["--program", PROGRAM, "--source", bucket.source]
    return main(["run", *arguments, "--destination", bucket.destination, *more])


@pytest.fixture
def looked_at(bucket: Bucket) -> Bucket:
    """Five sources: one published, one failed, one dropped, one changed since, one new."""
    plan = loaded(PROGRAM).plan
    shelf = Shelf(S3Location.parse(bucket.destination), plan.name, plan.fingerprint)
    bucket.put_sources(**{name: {"n": 1} for name in ("changed", "dropped", "failed", "published")})
    failure = Failure(Kind.RECORD_FAILURE, "Encrypted", "it is", "Split", "source")
    for source in list_sources(S3Location.parse(bucket.source)):
        outcome = RowOutcome.PUBLISHED
        if source.key in ("in/failed.json", "in/dropped.json"):
            outcome = RowOutcome(source.key[len("in/") : -len(".json")])
        shelf.record(Row(source, outcome, failure if outcome is RowOutcome.FAILED else None))
    bucket.put_sources(changed={"n": 2}, new={"n": 1})
    return bucket


def lines(shown: str) -> list[list[str]]:
    return [line.rsplit(maxsplit=1) for line in shown.splitlines()[:-1]]


def test_a_dry_run_prints_every_source(
    looked_at: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    before = looked_at.keys()
    assert run(looked_at, "--dry-run") == 0
    shown = capsys.readouterr()
    assert [(" ".join(head.split()), key) for head, key in lines(shown.out)] == [
        ("run changed", "in/changed.json"),
        ("count again dropped before", "in/dropped.json"),
        ("count again failed before", "in/failed.json"),
        ("run new or again", "in/new.json"),
        ("skip published before", "in/published.json"),
    ]
    assert shown.out.splitlines()[-1] == (
        "dry run, nothing was started. 5 sources: 1 new or again, 1 changed, 1 published before, "
        "1 failed before, 1 dropped before, 2 to run, 1 skipped, 2 counted again"
    )
    assert shown.err == ""
    assert run(looked_at, "--dry-run", "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert [(each["intent"], each["standing"], each["key"]) for each in told["chosen"]][:2] == [
        ("run", "changed", "in/changed.json"),
        ("count again", "dropped before", "in/dropped.json"),
    ]
    names = ("state", "exit_status", "sources", "to_run", "skipped", "counted_again", "left_out")
    assert [told[name] for name in names] == ["DryRun", 0, 5, 2, 1, 2, 0]
    assert told["standings"]["published before"] == 1
    assert shown.err == ""
    assert looked_at.keys() == before


@pytest.mark.parametrize(
    ("more", "intents"),
    [
        (("--limit", "1"), ["run", "count again", "count again", "leave out", "skip"]),
        (("--retry-failed",), ["run", "count again", "run", "run", "skip"]),
        (("--force",), ["run"] * 5),
        (("--force", "--limit", "2"), ["run", "run", "leave out", "leave out", "leave out"]),
        (("--only", "in/new.json", "--only", "in/failed.json"), ["count again", "run"]),
    ],
)
def test_a_dry_run_shows_what_the_settings_do(
    looked_at: Bucket,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    intents: list[str],
) -> None:
    assert run(looked_at, "--dry-run", *more) == 0
    shown = capsys.readouterr().out.splitlines()[:-1]
    assert [line[:12].strip() for line in shown] == intents


def test_retry_failed_is_a_run_that_retries(
    looked_at: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--program", PROGRAM, "--source", looked_at.source, "--dry-run"]
    arguments += ["--destination", looked_at.destination]
    assert main(["run", "--retry-failed", *arguments]) == 0
    asked = capsys.readouterr().out
    assert main(["retry-failed", *arguments]) == 0
    assert capsys.readouterr().out == asked
    assert main(["retry-failed", *arguments, "--only", "a"]) == 2
    assert capsys.readouterr().err.startswith("rayorch-prefect retry-failed: only: no source 'a'")


def test_an_unknown_key_is_one_line(looked_at: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(looked_at, "--dry-run", "--only", "in/nwe.json") == 2
    shown = capsys.readouterr().err
    assert f"no source 'in/nwe.json' under {looked_at.source}, which has 5" in shown
    assert shown.count("\n") == 1


def test_an_empty_prefix_is_one_line(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.put("inn/a", b"x")
    assert run(bucket, "--dry-run") == 2
    shown = capsys.readouterr().err
    assert f"no object under {bucket.source}" in shown
    assert "holds inn/" in shown
    assert shown.count("\n") == 1
    assert run(bucket, "--dry-run", "--allow-empty") == 0
    assert capsys.readouterr().out == "dry run, nothing was started. 0 sources\n"


def test_a_prefect_api_that_does_not_answer_is_one_line(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    with using_api("http://user:hidden@127.0.0.1:1/api"):
        assert run(bucket) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("rayorch-prefect run: no Prefect API answers at http://")
    assert "hidden" not in shown
    assert shown.count("\n") == 1


def test_a_name_that_the_store_takes_for_no_bucket_is_a_wrong_argument(
    bucket: Bucket, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with s3_server.refusing("GET", f"/{bucket.name}", (400, "InvalidBucketName")):
        assert run(bucket, "--dry-run") == 2
    shown = capsys.readouterr().err
    assert "InvalidBucketName" in shown
    assert "check the name of the bucket" in shown
    assert shown.count("\n") == 1


def test_no_rights_are_no_wrong_argument(
    bucket: Bucket, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with s3_server.refusing("GET", f"/{bucket.name}", (403, "AccessDenied")):
        assert run(bucket, "--dry-run") == 1
    assert "AccessDenied" in capsys.readouterr().err


def test_a_missing_bucket_is_one_line(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    missing = Bucket(f"{bucket.name}-nowhere")
    assert run(missing, "--dry-run") == 1
    shown = capsys.readouterr().err
    assert shown.startswith("rayorch-prefect run: ")
    assert "NoSuchBucket" in shown
    assert shown.count("\n") == 1
