"""`rayorch-prefect status`: what the ledger holds, and what it leaves of the sources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.standings import standing_of
from rayorch_prefect.cli.main import main
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import LedgerEntry, RowOutcome, S3Location, list_sources
from rayorch_prefect.storage.client import s3_client
from tests.binding.leaks import by_blocks_alone
from tests.services import Bucket, S3Server

PROGRAM = "tests.binding.programs:joined"
SECRET = "very-hidden-token"


def status(bucket: Bucket, *more: str) -> int:
    return main(["status", "--program", PROGRAM, "--destination", bucket.destination, *more])


def failure(kind: Kind, type: str) -> Failure:
    return Failure(kind, type, f"said {SECRET}", "Split", "source")


ENDS: dict[str, tuple[RowOutcome, Failure | None]] = {
    "changed": (RowOutcome.PUBLISHED, None),
    "dropped": (RowOutcome.DROPPED, None),
    "encrypted": (RowOutcome.FAILED, failure(Kind.RECORD_FAILURE, "Encrypted")),
    "gone": (RowOutcome.FAILED, failure(Kind.RECORD_FAILURE, "Encrypted")),
    "published": (RowOutcome.PUBLISHED, None),
    "worn": (RowOutcome.FAILED, failure(Kind.ATTEMPTS_EXHAUSTED, "WorkerDied")),
}


def record(bucket: Bucket) -> None:
    """Let the ledger say how the sources that there are ended, as in `ENDS`."""
    plan = load_program(PROGRAM).plan
    shelf = Shelf(S3Location.parse(bucket.destination), plan.name, plan.fingerprint)
    for source in list_sources(S3Location.parse(bucket.source)):
        outcome, failed = ENDS[source.key[len("in/") : -len(".json")]]
        gaps = ("1",) if source.key == "in/published.json" else ()
        shelf.record(Row(source, outcome, failed, missing=gaps))


@pytest.fixture
def looked_at(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Sources as in `ENDS`; then one changed, one went and a new one came."""
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    bucket.put_sources(**{name: {"n": 1} for name in ENDS})
    record(bucket)
    bucket.put_sources(changed={"n": 2}, new={"n": 1})
    s3_client().delete_object(Bucket=bucket.name, Key="in/gone.json")
    return bucket


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_the_ledger_alone(looked_at: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    before = looked_at.keys()
    assert status(looked_at) == 1
    shown = capsys.readouterr()
    counts = [line.rsplit(maxsplit=1) for line in shown.out.splitlines()]
    assert [(" ".join(name.split()), value) for name, value in counts[:8]] == [
        ("published", "2"),
        ("with gaps", "1"),
        ("dropped", "1"),
        ("failed", "3"),
        ("AttemptsExhausted", "1"),
        ("RecordFailure", "2"),
        ("type Encrypted", "2"),
        ("type WorkerDied", "1"),
    ]
    assert "failed  in/worn.json  AttemptsExhausted (WorkerDied): stage Split" in shown.out
    assert SECRET not in shown.out
    assert shown.err == ""
    assert looked_at.keys() == before


def test_the_sources_against_the_ledger(
    looked_at: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(looked_at, "--source", looked_at.source, "--json") == 1
    found = told(capsys)
    assert found["left"] == [
        {"key": "in/changed.json", "standing": "changed"},
        {"key": "in/new.json", "standing": "new or again"},
        {"key": "in/worn.json", "standing": "failed before"},
    ]
    assert [each["key"] for each in found["first_failed"]] == ["in/encrypted.json", "in/worn.json"]
    numbers = [found[name] for name in ("sources", "changed_since", "not_there", "failed")]
    assert numbers == [6, 1, 1, 2]
    places = f"--source {looked_at.source} --destination {looked_at.destination}"
    assert found["next"] == f"rayorch-prefect run --program {PROGRAM} {places} --retry-failed"
    assert SECRET not in json.dumps(found)


def test_nothing_failed_and_nothing_left(
    bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_sources(published={"n": 1}, dropped={"n": 1})
    assert status(bucket, "--source", bucket.source) == 1
    out = capsys.readouterr().out
    assert "(nothing recorded)" in out
    assert out.splitlines()[-1].startswith("next    rayorch-prefect run --program")
    record(bucket)
    assert status(bucket, "--source", bucket.source) == 0
    capsys.readouterr()
    assert status(bucket) == 0
    assert "has no entry and runs again; give --source to see it" in capsys.readouterr().out
    assert status(bucket, "--json") == 0
    found = told(capsys)
    assert (found["left"], found["next"]) == (None, None)


def test_places_by_the_names_of_blocks(
    bucket: Bucket,
    s3_server: S3Server,
    prefect_server: PrefectServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket.put_sources(a={"n": 1})
    with by_blocks_alone(bucket, s3_server, "OFTHEBLOCK", SECRET, SECRET) as (places, used):
        asked = ["--source", places["source"], "--destination", places["destination"]]
        assert main(["status", "--program", PROGRAM, *asked]) == 1
        assert main(["run", "--dry-run", "--program", PROGRAM, *asked]) == 0
    said = capsys.readouterr()
    assert "left    in/a.json  new" in said.out
    assert used == {"OFTHEBLOCK"}
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("first", ["2026-01-01", "2026-01-03"])
def test_the_last_end_of_a_source_counts(first: str) -> None:
    def entry(etag: str, kind: Kind | None, finished: str) -> LedgerEntry:
        outcome = RowOutcome.FAILED if kind else RowOutcome.PUBLISHED
        return LedgerEntry("s3://lake/in/a", etag, "f", outcome, kind, finished=finished)

    entries = [entry("1", Kind.RECORD_FAILURE, first), entry("2", None, "2026-01-02")]
    found = standing_of({each.key: each for each in entries})
    failed = int(first > "2026-01-02")
    assert (len(found.failed), found.count(RowOutcome.PUBLISHED)) == (failed, 1 - failed)


def test_only_the_first_are_named(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.put_sources(**{f"s{index:02}": {"n": 1} for index in range(23)})
    assert status(bucket, "--source", bucket.source) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("left ") for line in lines) == 21
    assert lines[-2] == "left    and 3 more"


def test_what_the_store_refuses_is_one_line(
    bucket: Bucket, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with s3_server.refusing("GET", f"/{bucket.name}", (403, "AccessDenied")):
        assert status(bucket) == 1
    assert capsys.readouterr().err.startswith("rayorch-prefect status: could not list")
    bucket.put("inn/a", b"x")
    assert status(bucket, "--source", bucket.source) == 2
    assert "no object under" in capsys.readouterr().err
