"""A store that stumbles: what is tried again, how, and what an error then is."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rayorch_prefect.errors import StoreError, StoreUnavailable, UsageError
from rayorch_prefect.storage import (
    Ledger,
    LedgerEntry,
    RowOutcome,
    S3Location,
    Terms,
    list_sources,
    publish,
    sweep_uploads,
)
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.objects import get_object
from tests.fault_proxy import FaultProxy
from tests.stores import Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

on_moto = pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
CONTENT = b"0123456789" * 30_000

FAULTS: dict[str, dict[str, Any]] = {
    "slow down": {"answer": (503, "SlowDown")},
    "too many": {"answer": (429, "TooManyRequests")},
    "internal": {"answer": (500, "InternalError")},
    "bad gateway": {"answer": (502, "BadGateway")},
    "no answer": {"cut": "request"},
    "lost answer": {"cut": "reply"},
    "half a body up": {"cut": "upload", "cut_at": 100_000},
    "half a body down": {"cut": "download", "cut_at": 100_000},
}


@on_moto
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_is_not_noticed(
    s3: S3Client, bucket: str, outgoing: S3Location, proxy: FaultProxy, fault: str
) -> None:
    asks_for_time = fault in ("slow down", "too many")
    for method in ("PUT",) if asks_for_time else ("PUT", "HEAD", "GET"):
        proxy.on(method, "/out/in/a.bin", times=2, **FAULTS[fault])
    if not asks_for_time:
        proxy.on("GET", "list-type", times=2, **FAULTS[fault])
    publish(CONTENT, outgoing, "in/a")
    (source,) = list_sources(outgoing)
    assert source.read() == CONTENT
    assert s3.get_object(Bucket=bucket, Key="out/in/a.bin")["Body"].read() == CONTENT


@on_moto
@pytest.mark.parametrize("fault", [*FAULTS, "no store"])
def test_one_that_stays_is_an_unavailable_store_after_bounded_tries(
    outgoing: S3Location, proxy: FaultProxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(CONTENT, outgoing, "in/a")
    (source,) = list_sources(outgoing)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    if fault == "no store":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    else:
        proxy.on(**FAULTS[fault])
    before = len(proxy.seen)
    with pytest.raises(StoreUnavailable, match=r"could not read s3://.*/out/in/a.bin: "):
        source.read()
    # Bodies have tries of their own.
    assert len(proxy.seen) - before <= 6


@on_moto
def test_half_a_refusal_is_no_more_than_a_broken_connection(
    outgoing: S3Location, proxy: FaultProxy
) -> None:
    """boto3 reads the body of a refused download outside of its own tries."""
    half = proxy.on("GET", "/out/none", times=2, cut="download", cut_at=20)
    assert get_object(outgoing, "out/none") is None
    assert half.hits == 2
    proxy.on("GET", "/out/none", cut="download", cut_at=20)
    with pytest.raises(StoreUnavailable, match=r"could not read s3://.*/out/none: .*check"):
        get_object(outgoing, "out/none")


@on_moto
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_when_the_store_asks_one_request_to_slow_down_all_do(
    outgoing: S3Location, proxy: FaultProxy, method: str
) -> None:
    """A 503 to HEAD comes without a word: the status has to do."""

    proxy.on(method, "/out/slow", times=1, answer=(503, "SlowDown"))
    if method == "GET":
        get_object(outgoing, "out/slow")
    else:
        with pytest.raises(s3_client().exceptions.ClientError, match="404"):
            s3_client().head_object(Bucket=outgoing.bucket, Key="out/slow")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: get_object(outgoing, "out/other"), range(6)))
    times = [seen.at for seen in proxy.seen if seen.target.endswith("/other")]
    assert max(times) - min(times) > 0.6


@on_moto
def test_an_answer_that_does_not_come_is_not_waited_for_long(
    outgoing: S3Location, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYORCH_PREFECT_READ_TIMEOUT", "0.5")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    held = proxy.on("PUT", "/out/", times=1, hold="reply")
    publish(b"x", outgoing, "in/a")
    assert proxy.count("PUT", "/out/") == 2
    held.release()
    held = proxy.on("PUT", "/out/", hold="request")
    with pytest.raises(StoreUnavailable, match="Read timeout"):
        publish(b"x", outgoing, "in/a")
    held.release()
    monkeypatch.setenv("RAYORCH_PREFECT_READ_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="READ_TIMEOUT is 'soon'; expected seconds"):
        publish(b"x", outgoing, "in/a")


Read = Callable[[S3Location], object]


def _ledger(place: S3Location) -> Ledger:
    return Ledger(place, "toy", "f" * 64)


READS: dict[str, Read] = {
    "an object": lambda place: get_object(place, "out/in/a.txt"),
    "a source": lambda place: next(iter(list_sources(place))).read(),
    "the ledger": lambda place: _ledger(place).load(),
    "what is there": lambda place: publish("y", place, "in/a", Terms(conditional=True)),
    "open uploads": lambda place: sweep_uploads(S3Location(place.bucket, "out/notes/")),
}


@on_moto
@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("listing", [False, True])
def test_what_may_not_be_read_is_not_absent(
    s3: S3Client, outgoing: S3Location, proxy: FaultProxy, what: str, listing: bool
) -> None:
    publish("x", outgoing, "in/a")
    entry = LedgerEntry("s3://b/in/a", "e", "f" * 64, RowOutcome.DROPPED)
    _ledger(outgoing).record(entry)
    s3.put_object(Bucket=outgoing.bucket, Key="out/notes/n.json", Body=b'{"key": "out/in/b"}')
    if listing and what in ("an object", "what is there"):
        pytest.skip("lists nothing")
    denied = (403, "AccessDenied")
    if listing:
        proxy.on("GET", "list-type", answer=denied)
    else:
        proxy.on("GET", r"/out/.*[^/]$", answer=denied)
        proxy.on("HEAD", answer=denied)
    with pytest.raises(StoreError, match=r"403|AccessDenied") as raised:
        READS[what](outgoing)
    assert not isinstance(raised.value, StoreUnavailable)


@on_moto
def test_credentials_that_expire_are_asked_for_anew(
    outgoing: S3Location, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the shared file, which whoever renews them writes anew; boto3 reads it once."""
    shared = tmp_path / "credentials"

    def write(key: str) -> None:
        shared.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=s\n")

    def asked_by() -> list[str]:
        return [seen.headers["authorization"].split("=")[1].split("/")[0] for seen in proxy.seen]

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    write("early")
    proxy.on("PUT", "/out/", times=1, answer=(400, "ExpiredToken"))
    with pytest.raises(StoreUnavailable, match="the session token has expired"):
        publish(b"x", outgoing, "in/a")
    write("late")
    publish(b"x", outgoing, "in/a")
    assert asked_by() == ["early", "late", "late"]


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
def test_keys_that_the_store_does_not_know_are_not_for_now(
    outgoing: S3Location, s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(StoreError, match="SignatureDoesNotMatch") as raised:
        get_object(outgoing, "out/x")
    assert not isinstance(raised.value, StoreUnavailable)
