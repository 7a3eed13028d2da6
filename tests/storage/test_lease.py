from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from rayorch_prefect.errors import LeaseLost, OwnedElsewhere, StoreError
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.lease import FENCE_SECONDS, Lease, acquire, lease_file
from rayorch_prefect.storage.lease_file import LeaseFile
from rayorch_prefect.storage.owner import Owner, Process
from tests.fault_proxy import FaultProxy
from tests.stores import Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

EXPIRES = 4.0


@pytest.fixture
def file(s3: S3Client, outgoing: S3Location) -> LeaseFile:
    return lease_file(outgoing, "documents", EXPIRES)


@pytest.fixture
def conditional(s3_store: Store) -> bool:
    return s3_store.name == "moto"


def owner(name: str, process: Process | None = None) -> Owner:
    return Owner(f"id-{name}", name, host="host-1", process=process or Process.this())


def ended_process() -> Process:
    """A process of this machine that was there and has ended."""
    code = "import sys; print(open(f'/proc/self/stat').read().rpartition(')')[2].split()[19])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        started = child.stdout.read().strip()
    return dataclasses.replace(Process.this(), pid=child.pid, started=started)


class Waiter:
    """Waits, and does one thing at its n-th time."""

    def __init__(self, at: int = 0, act: Any = None) -> None:
        self.at = at
        self.act = act
        self.times = 0

    def __call__(self, seconds: float) -> None:
        self.times += 1
        if self.times == self.at:
            self.act()
        time.sleep(seconds)


def take(file: LeaseFile, name: str, conditional: bool, pause: Any = time.sleep) -> Lease:
    return acquire(file, owner(name), EXPIRES, conditional, pause)


def test_it_is_taken_renewed_and_let_go(file: LeaseFile, conditional: bool) -> None:
    first = take(file, "first", conditional)
    for _ in range(3):
        first.renew()
    first.fence().check()
    seen = file.look()
    assert seen is not None
    assert (seen.record.owner.run_name, seen.record.beat) == ("first", 4)
    first.release()
    waiter = Waiter()
    second = take(file, "second", conditional, waiter)
    assert waiter.times == 0
    assert second.taken_from is None
    with pytest.raises(LeaseLost, match=r"was taken by flow run second \(id-second\) on host-1"):
        first.renew()
    second.release()


def test_who_comes_second_is_told_who_owns_it(file: LeaseFile, conditional: bool) -> None:
    first = take(file, "first", conditional)
    with pytest.raises(OwnedElsewhere) as told:
        take(file, "second", conditional, Waiter(2, first.renew))
    for word in ("documents", "s3://", "flow run first (id-first) on host-1", "last heartbeat 20"):
        assert word in str(told.value)
    first.renew()
    first.release()


def test_a_run_that_lets_go_meanwhile_is_followed(file: LeaseFile, conditional: bool) -> None:
    first = take(file, "first", conditional)
    second = take(file, "second", conditional, Waiter(1, first.release))
    assert second.taken_from is None
    second.renew()


@pytest.mark.slow
def test_an_owner_without_heartbeats_loses_it_in_time(file: LeaseFile, conditional: bool) -> None:
    first = take(file, "first", conditional)
    fence = first.fence()
    fence.check()
    began = time.monotonic()
    second = take(file, "second", conditional)
    took = time.monotonic() - began
    assert took >= EXPIRES
    assert second.taken_from is not None
    assert second.taken_from.owner.run_name == "first"
    assert first.expired
    # Paused all the time, it finds out: no heartbeat, nothing published, no letting go.
    for late in (first.renew, fence.check, first.release):
        with pytest.raises(LeaseLost, match="was taken by flow run second"):
            late()
    second.renew()
    second.fence().check()


def test_a_dead_process_of_this_machine_is_followed_at_once(
    file: LeaseFile, conditional: bool
) -> None:
    process = ended_process()
    assert process.is_dead()
    assert not Process.this().is_dead()
    acquire(file, owner("first", process), EXPIRES, conditional, time.sleep)
    began = time.monotonic()
    second = take(file, "second", conditional)
    # But its workers may trust for a moment what they have just seen.
    assert FENCE_SECONDS <= time.monotonic() - began < EXPIRES
    assert second.taken_from is not None


@pytest.mark.parametrize("change", [{"boot": "x"}, {"namespace": "x"}, {"started": ""}])
def test_a_process_elsewhere_is_not_called_dead(change: dict[str, str]) -> None:
    assert not dataclasses.replace(ended_process(), **change).is_dead()  # type: ignore[arg-type]


def test_a_number_used_again_is_another_process() -> None:
    assert dataclasses.replace(Process.this(), started="1").is_dead()
    assert Process.this().pid == os.getpid()


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_only_one_of_two_that_find_it_expired_wins(file: LeaseFile, outgoing: S3Location) -> None:
    acquire(file, owner("first", ended_process()), EXPIRES, True, time.sleep)
    won: list[Lease] = []
    rival = lease_file(outgoing, "documents", EXPIRES)

    class Late(LeaseFile):
        """Reads, and is overtaken before it writes."""

        def replace(self, record: Any, etag: str) -> str | None:
            won.append(take(rival, "rival", True))
            return super().replace(record, etag)

    late = Late(outgoing, "documents", file._client)
    with pytest.raises(OwnedElsewhere, match="flow run rival"):
        take(late, "late", True, Waiter(1, lambda: won[0].renew()))
    won[0].renew()


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_an_answer_that_was_lost_is_not_taken_for_a_rival(
    file: LeaseFile, outgoing: S3Location
) -> None:
    class Deaf(LeaseFile):
        """Sends each request twice, as a client does that heard no answer to the first."""

        def _put(self, record: Any, **condition: str) -> str | None:
            super()._put(record, **condition)
            return super()._put(record, **condition)

    deaf = Deaf(outgoing, "documents", file._client)
    lease = take(deaf, "first", True)
    lease.renew()
    lease.renew()
    lease.release()


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_no_permission_is_not_a_free_lease(outgoing: S3Location, proxy: FaultProxy) -> None:
    proxy.on("GET", "lease.json", answer=(403, "AccessDenied"))
    refused = lease_file(outgoing, "documents", EXPIRES)
    with pytest.raises(StoreError, match="AccessDenied"):
        take(refused, "second", True)


@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}', b'{"format": 1}', b"[]"])
def test_what_is_no_lease_is_named(
    file: LeaseFile, s3: S3Client, bucket: str, content: bytes
) -> None:
    s3.put_object(Bucket=bucket, Key="out/_rayorch/documents/lease.json", Body=content)
    with pytest.raises(StoreError, match=r"lease s3://.*lease\.json is not readable.*delete that"):
        take(file, "second", True)


@pytest.mark.slow
@pytest.mark.parametrize("s3_store", ["moto"], indirect=True)
def test_a_lease_that_is_not_renewed_in_time_stops_its_own_uploads(
    file: LeaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(file, "first", True)
    fence = lease.fence()
    time.sleep(EXPIRES)
    with pytest.raises(LeaseLost, match="has expired: no heartbeat"):
        fence.check()
    lease.renew()
    fence.check()
