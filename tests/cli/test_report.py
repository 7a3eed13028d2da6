"""`rayorch-prefect report`: the last night that left files, or the one asked for."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rayorch_prefect.cli.main import main
from rayorch_prefect.storage import ManifestRow, RowOutcome, S3Location, write_part, write_report
from rayorch_prefect.storage.nights import newest_run
from tests.services import Bucket, S3Server

PROGRAM = "tests.binding.programs:joined"


def report(bucket: Bucket, *more: str) -> int:
    return main(["report", "--program", PROGRAM, "--destination", bucket.destination, *more])


def left_by_a_night(bucket: Bucket, run_id: str, page: bool = True) -> None:
    """What a night of two microbatches leaves."""
    place = S3Location.parse(bucket.destination)
    published = ManifestRow("s3://b/in/a", "1", 1, RowOutcome.PUBLISHED, missing=("1",))
    failed = ManifestRow("s3://b/in/b", "1", 1, RowOutcome.FAILED, "RecordFailure", "Encrypted")
    write_part([published, failed], place, "joined", run_id)
    write_part([ManifestRow("s3://b/in/c", "1", 1, RowOutcome.SKIPPED)], place, "joined", run_id, 1)
    if page:
        write_report("<p>", place, "joined", run_id)


def test_a_nights_places_and_counts(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    left_by_a_night(bucket, "n-1")
    before = bucket.keys()
    assert report(bucket) == 0
    pairs = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    cells = {name.strip(): value for name, value in pairs}
    folder = f"{bucket.destination}_rayorch/joined/manifests/n-1/"
    assert (cells["night"], cells["manifest"]) == ("n-1", folder)
    assert cells["report"] == f"{folder}report.html"
    names = ("sources", "published", "with gaps", "failed", "type Encrypted", "skipped", "dropped")
    assert [cells[name] for name in names] == ["3", "1", "1", "1", "1", "1", "0"]
    assert bucket.keys() == before


def test_the_night_that_is_asked_for(bucket: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    left_by_a_night(bucket, "n-1")
    left_by_a_night(bucket, "n-2", page=False)
    for night, page in (("n-1", True), ("n-2", False)):
        assert report(bucket, "--night", night, "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["night"], told["report"] is not None, told["sources"]) == (night, page, 3)
        assert told["failed_by_kind"] == {"RecordFailure": 1}


def test_no_such_night(
    bucket: Bucket, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(bucket) == 2
    assert "no night of joined has left a manifest in" in capsys.readouterr().err
    left_by_a_night(bucket, "n-1")
    assert report(bucket, "--night", "n") == 2
    assert capsys.readouterr().err.endswith("the last is n-1\n")
    with s3_server.refusing("GET", f"/{bucket.name}", (403, "AccessDenied")):
        assert report(bucket) == 1


def test_the_last_night_is_the_one_that_wrote_last() -> None:
    def at(hour: int) -> datetime:
        return datetime(2026, 1, 1, hour, tzinfo=UTC)

    found = [("z/part-00000.parquet", at(1)), ("a/part-00000.parquet", at(2))]
    assert newest_run([*found, ("z/report.html", at(3))]) == "a"
    assert newest_run([]) is None
