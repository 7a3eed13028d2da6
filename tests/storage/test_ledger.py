from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import (
    Ledger,
    LedgerEntry,
    RowOutcome,
    S3Location,
    Source,
    publish,
    subtract,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FINGERPRINT = "0123456789abcdef" * 4


def entry(
    uri: str, outcome: RowOutcome = RowOutcome.PUBLISHED, kind: Kind | None = None
) -> LedgerEntry:
    return LedgerEntry(uri, "e1", FINGERPRINT, outcome, kind)


def source(uri: str, etag: str = "e1", version: str | None = None) -> Source:
    return Source(uri, etag, 1, uri.removeprefix("s3://b/"), version)


@pytest.fixture
def ledger(s3: S3Client, outgoing: S3Location) -> Ledger:
    return Ledger(outgoing, "documents", FINGERPRINT)


def test_entries_come_back_as_recorded(ledger: Ledger, outgoing: S3Location) -> None:
    published = publish({".md": "x"}, outgoing, "in/é.pdf")
    entries = [
        LedgerEntry(
            "s3://b/in/é.pdf",
            "e1",
            FINGERPRINT,
            RowOutcome.PUBLISHED,
            artifacts=published.artifacts,
            children=4,
            missing=("1", "3/2"),
            attempts=2,
            version="v1",
        ),
        LedgerEntry(
            "s3://b/in/b\n",
            "e2",
            FINGERPRINT,
            RowOutcome.FAILED,
            Kind.RECORD_FAILURE,
            "Encrypted",
            "needs a password",
        ),
        entry("s3://b/in/c", RowOutcome.DROPPED),
    ]
    for each in entries:
        ledger.record(each)
    assert ledger.load() == {each.key: each for each in entries}
    assert set(ledger.load()) == {
        ("s3://b/in/é.pdf", "v1"),
        ("s3://b/in/b\n", "e2"),
        ("s3://b/in/c", "e1"),
    }


def test_a_later_entry_replaces_the_earlier(ledger: Ledger) -> None:
    ledger.record(entry("s3://b/in/a", RowOutcome.FAILED, Kind.UPLOAD_FAILED))
    ledger.record(entry("s3://b/in/a"))
    (kept,) = ledger.load().values()
    assert kept.outcome is RowOutcome.PUBLISHED


def test_programs_fingerprints_and_destinations_are_apart(
    ledger: Ledger, outgoing: S3Location
) -> None:
    ledger.record(entry("s3://b/in/a"))
    assert Ledger(outgoing, "other", FINGERPRINT).load() == {}
    assert Ledger(outgoing, "documents", "f" * 64).load() == {}
    assert Ledger(S3Location(outgoing.bucket, "out2/"), "documents", FINGERPRINT).load() == {}
    # The same folder, as its name carries sixteen characters only.
    close = Ledger(outgoing, "documents", FINGERPRINT[:16] + "f" * 48)
    assert close.load() == {}
    close.record(dataclasses.replace(entry("s3://b/in/a"), fingerprint=close.fingerprint))
    assert len(ledger.load()) == len(close.load()) == 1


def test_an_odd_program_name_stays_one_segment(s3: S3Client, outgoing: S3Location) -> None:
    odd = Ledger(outgoing, "my/../program", FINGERPRINT)
    odd.record(entry("s3://b/in/a"))
    assert len(odd.load()) == 1
    assert odd.location.prefix.startswith("out/_rayorch/my~2F..~2Fprogram/ledger/")


def test_a_new_file_leaves_finished_work_finished(ledger: Ledger) -> None:
    for name in "abc":
        ledger.record(entry(f"s3://b/in/{name}"))
    sources = [source(f"s3://b/in/{name}") for name in "0abc"]
    left = ledger.subtract(sources)
    assert left.to_run == (sources[0],)
    assert [each for each, _ in left.skipped] == sources[1:]
    assert left.counted == ()


def test_changed_content_is_run_again(ledger: Ledger) -> None:
    ledger.record(entry("s3://b/in/a"))
    changed = source("s3://b/in/a", etag="e2")
    assert ledger.subtract([changed]).to_run == (changed,)


def test_what_a_later_version_has_replaced_is_run_again(ledger: Ledger) -> None:
    first, second = source("s3://b/in/a", etag="e1"), source("s3://b/in/a", etag="e2")
    for second_of, each in ((1, first), (2, second)):
        finished = f"2026-01-01T00:00:0{second_of}.000+00:00"
        recorded = dataclasses.replace(entry(each.uri), etag=each.etag, finished=finished)
        ledger.record(recorded)
        assert ledger.subtract([each]).to_run == ()
    assert ledger.subtract([first]).to_run == (first,)


def test_a_version_counts_before_the_etag() -> None:
    known = dataclasses.replace(entry("s3://b/in/a"), version="v1")
    same, other = source("s3://b/in/a", version="v1"), source("s3://b/in/a", version="v2")
    left = subtract({known.key: known}, [same, other])
    assert left.to_run == (other,)
    assert left.skipped == ((same, known),)


RULES = [
    # outcome, kind, gaps, (place by default, place under retry_failed)
    (RowOutcome.PUBLISHED, None, (), ("skipped", "skipped")),
    (RowOutcome.PUBLISHED, None, ("1",), ("skipped", "to_run")),
    (RowOutcome.DROPPED, None, (), ("counted", "counted")),
    (RowOutcome.FAILED, Kind.RECORD_FAILURE, (), ("counted", "to_run")),
    (RowOutcome.FAILED, Kind.GROUP_FAILURE, (), ("counted", "to_run")),
    (RowOutcome.FAILED, Kind.ATTEMPTS_EXHAUSTED, (), ("to_run", "to_run")),
    (RowOutcome.FAILED, Kind.UPLOAD_FAILED, (), ("to_run", "to_run")),
    (RowOutcome.FAILED, Kind.CONTRACT_ERROR, (), ("to_run", "to_run")),
]


def test_the_rules_name_every_kind() -> None:
    assert {kind for _, kind, _, _ in RULES} == {None, *Kind}


@pytest.mark.parametrize(("rule", "retry"), list(itertools.product(RULES, (False, True))))
def test_what_is_run_again(
    rule: tuple[RowOutcome, Kind | None, tuple[str, ...], tuple[str, str]], retry: bool
) -> None:
    outcome, kind, missing, places = rule
    known = dataclasses.replace(entry("s3://b/in/a", outcome, kind), missing=missing)
    left = subtract({known.key: known}, [source("s3://b/in/a")], retry_failed=retry)
    found = {name: len(getattr(left, name)) for name in ("to_run", "skipped", "counted")}
    assert found == {"to_run": 0, "skipped": 0, "counted": 0, places[retry]: 1}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"format": 2}', b'{"format": 1, "uri": "s3://b/a"}', b"\xff"],
)
def test_a_broken_entry_is_named(s3: S3Client, bucket: str, ledger: Ledger, content: bytes) -> None:
    artifact = ledger.record(entry("s3://b/in/a"))
    s3.put_object(Bucket=bucket, Key=artifact.key, Body=content)
    with pytest.raises(StoreError, match=f"{artifact.key}.*delete that object and run again"):
        ledger.load()


def test_what_lies_beside_the_entries_is_left_alone(
    s3: S3Client, bucket: str, ledger: Ledger
) -> None:
    ledger.record(entry("s3://b/in/a"))
    s3.put_object(Bucket=bucket, Key=f"{ledger.location.prefix}compact.parquet", Body=b"x")
    assert len(ledger.load()) == 1


def test_entries_that_make_no_sense_are_refused(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="published, failed and dropped"):
        entry("s3://b/in/a", RowOutcome.SKIPPED)
    with pytest.raises(UsageError, match="kind"):
        entry("s3://b/in/a", RowOutcome.FAILED)
    with pytest.raises(UsageError, match="kind"):
        entry("s3://b/in/a", RowOutcome.PUBLISHED, Kind.RECORD_FAILURE)
    with pytest.raises(UsageError, match="fingerprint"):
        ledger.record(dataclasses.replace(entry("s3://b/in/a"), fingerprint="other"))
