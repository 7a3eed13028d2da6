from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import LeaseLost, StoreError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import Artifact, Ledger, LedgerEntry, RowOutcome, S3Location
from rayorch_prefect.storage.compacted import Held, compacted_name, to_parquet
from rayorch_prefect.storage.objects import put_object
from tests.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

FINGERPRINT = "0123456789abcdef" * 4
LOADS_IN = 30.0


def owned() -> None:
    """The run still owns the ledger."""


def entry(name: str, outcome: RowOutcome = RowOutcome.PUBLISHED, **fields: object) -> LedgerEntry:
    uri, etag = f"s3://b/in/{name}", f"e-{name}"
    return LedgerEntry(uri, etag, FINGERPRINT, outcome, **fields)  # type: ignore[arg-type]


def published(name: str) -> LedgerEntry:
    keys = [f"out/in/{name}{suffix}" for suffix in (".md", ".json")]
    artifacts = tuple(Artifact(key, f"s3://b/{key}", 9, "0" * 64, "etag") for key in keys)
    return entry(name, artifacts=artifacts, children=3, missing=("1", "3/2"), attempts=2)


ENTRIES = [
    published("a"),
    dataclasses.replace(published("é\n"), version="v1"),
    entry("b", RowOutcome.FAILED, kind=Kind.RECORD_FAILURE, type="Encrypted", cause="password"),
    entry("c", RowOutcome.DROPPED),
]


@pytest.fixture
def ledger(s3: S3Client, outgoing: S3Location) -> Ledger:
    ledger = Ledger(outgoing, "documents", FINGERPRINT)
    for each in ENTRIES:
        ledger.record(each)
    return ledger


def names(ledger: Ledger, s3: S3Client) -> list[str]:
    found = s3.list_objects_v2(Bucket=ledger.location.bucket, Prefix=ledger.location.prefix)
    return [each.get("Key", "").rpartition("/")[2] for each in found.get("Contents", [])]


def test_compacted_entries_are_the_same_entries(ledger: Ledger, s3: S3Client) -> None:
    before = ledger.load()
    assert before == {each.key: each for each in ENTRIES}
    assert ledger.compact(ledger.read(), owned)
    (only,) = names(ledger, s3)
    assert only.startswith("compacted-00000001-")
    assert ledger.load() == before

    ledger.record(dataclasses.replace(ENTRIES[2], outcome=RowOutcome.PUBLISHED, kind=None))
    ledger.record(entry("d"))
    after = ledger.load()
    assert len(after) == 5
    assert after[ENTRIES[2].key].outcome is RowOutcome.PUBLISHED
    assert ledger.compact(ledger.read(), owned)
    (only,) = names(ledger, s3)
    assert only.startswith("compacted-00000002-")
    assert ledger.load() == after


def test_entries_of_another_fingerprint_in_the_same_folder_are_kept(
    ledger: Ledger, outgoing: S3Location
) -> None:
    close = Ledger(outgoing, "documents", FINGERPRINT[:16] + "f" * 48)
    assert close.location == ledger.location
    close.record(dataclasses.replace(entry("a"), fingerprint=close.fingerprint))
    ledger.compact(ledger.read(), owned)
    assert ledger.load() == {each.key: each for each in ENTRIES}
    assert list(close.load()) == [("s3://b/in/a", "e-a")]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_broken_off_anywhere_nothing_is_lost(
    ledger: Ledger, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayorch_prefect.storage.ledger._DELETED_AT_ONCE", 1)
    right = ledger.load()
    number = 0
    while number < 30:
        number += 1
        left = number

        def end() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        contents = ledger.read()
        try:
            ledger.compact(contents, end)
        except Killed:
            assert ledger.load() == right
        else:
            break
        # A later run's own entry, over one that may be in a file by now, and back again.
        changed = dataclasses.replace(ENTRIES[3], finished=str(number))
        ledger.record(changed)
        right = {**right, changed.key: changed}
        assert ledger.load() == right
    assert number > 3


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_without_the_right_to_delete_it_only_stays_larger(
    ledger: Ledger, s3: S3Client, proxy: FaultProxy
) -> None:
    proxy.on("DELETE", answer=(403, "AccessDenied"))
    before = ledger.load()
    assert not ledger.compact(ledger.read(), owned)
    assert len(names(ledger, s3)) == len(ENTRIES) + 1

    proxy.seen.clear()
    assert ledger.load() == before
    # What is in the file is not read again one by one.
    assert proxy.count("GET", r"/[0-9a-f]{64}\.json") == 0
    assert ledger.read().unread == 0
    changed = dataclasses.replace(ENTRIES[3], finished="later")
    ledger.record(changed)
    assert ledger.load() == {**before, changed.key: changed}
    assert not ledger.compact(ledger.read(), owned)
    assert ledger.load() == {**before, changed.key: changed}


def test_who_does_not_own_it_deletes_nothing(ledger: Ledger, s3: S3Client) -> None:
    contents = ledger.read()

    def lost() -> None:
        raise LeaseLost("it was taken")

    with pytest.raises(LeaseLost):
        ledger.compact(contents, lost)
    assert len(names(ledger, s3)) == len(ENTRIES)


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_no_permission_is_not_an_empty_ledger(ledger: Ledger, proxy: FaultProxy) -> None:
    ledger.compact(ledger.read(), owned)
    for method, key in (("GET", "compacted-"), ("GET", "list-type=2")):
        rule = proxy.on(method, key, answer=(403, "AccessDenied"))
        with pytest.raises(StoreError, match="AccessDenied"):
            ledger.load()
        proxy.remove(rule)


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_what_is_compacted_while_it_is_read_is_read_again(
    ledger: Ledger, outgoing: S3Location, proxy: FaultProxy
) -> None:
    before = ledger.load()
    other = Ledger(outgoing, "documents", FINGERPRINT)
    contents = other.read()
    proxy.on("GET", r"\.json", times=1, before=lambda seen: other.compact(contents, owned))
    assert ledger.load() == before


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
@pytest.mark.parametrize("content", [b"", b"PAR1", "plain"])
def test_an_unreadable_file_is_named(ledger: Ledger, s3: S3Client, content: bytes | str) -> None:
    import pyarrow as pa

    from rayorch_prefect.storage.encoding import parquet_bytes

    plain = parquet_bytes(pa.table({"uri": ["s3://b/in/a"]}))
    key = f"{ledger.location.prefix}{compacted_name(1, 'f' * 32)}"
    body = content if isinstance(content, bytes) else plain
    s3.put_object(Bucket=ledger.location.bucket, Key=key, Body=body)
    with pytest.raises(StoreError, match=f"ledger file s3://.*{key}.*delete that object and run"):
        ledger.load()


@pytest.mark.slow
@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_a_hundred_thousand_entries_load_in_seconds(ledger: Ledger) -> None:
    held = [Held(published(f"{number:06}.pdf")) for number in range(100_000)]
    name = f"{ledger.location.prefix}{compacted_name(1, 'f' * 32)}"
    put_object(ledger.location, name, to_parquet(held), "application/vnd.apache.parquet")

    began = time.monotonic()
    loaded = ledger.load()
    took = time.monotonic() - began

    assert len(loaded) == 100_000 + len(ENTRIES)
    assert loaded[held[77].entry.key] == held[77].entry
    assert took < LOADS_IN, took
    print(f"loaded in {took:.1f} s")
