"""Nights beside a store that goes wrong at random: a seed fixes which request meets what.

`python -m tests.binding.stumbling 100 400` runs the nights of so many seeds, and says which of them
went wrong, and how.

Whatever happens in it, the night ends in time, with each row published whole or failed by type, or
with one typed error for all; nothing wrong lies in the store; and the next night, without faults,
publishes the rest, computes nothing of what was published, and leaves no part of an upload open.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

import tests.binding.small_night
from rayorch_prefect.binding import upload_groups
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.errors import BackendDown, LeaseLost, StoreError
from rayorch_prefect.execution import pauses
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import RowOutcome, S3Location, lease
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.owner import Owner, Process
from tests.binding.slices import NAMES, Slice
from tests.binding.small_night import LONG, PART_BYTES, small, small_night
from tests.fault_proxy import FaultProxy
from tests.services import Bucket, new_bucket
from tests.stores import Store, running_store

END_SECONDS = 90.0
READ_TIMEOUT = 0.5

# A night makes some eighty requests when all goes well.
REQUESTS = 400
ANSWERS = (
    (503, "SlowDown"),
    (503, "ServiceUnavailable"),
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (502, "BadGateway"),
    (504, "GatewayTimeout"),
    (507, "InsufficientStorage"),
    (400, "RequestTimeout"),
    (400, "ExpiredToken"),
    (403, "AccessDenied"),
)
FOR_EVER = (
    ("PUT", "/in/b.json.txt"),
    ("PUT", "/in/long.json.bin"),
    ("PUT", "partNumber=2"),
    ("POST", "uploads"),
    ("POST", "uploadId"),
    ("HEAD", "/in/long.json.bin"),
    ("PUT", "/ledger/"),
    ("PUT", "/uploads/"),
    ("GET", "/in/a.json"),
    ("GET", "/in/"),
    ("DELETE", ""),
)


def fault(choose: random.Random) -> dict[str, Any]:
    """What one request meets."""
    match choose.choice(("answer", "answer", "cut", "cut", "delay", "hold")):
        case "answer":
            return {"answer": choose.choice(ANSWERS)}
        case "cut":
            where = choose.choice(("request", "upload", "reply", "download"))
            return {"cut": where, "cut_at": choose.choice((0, 1, 20, 300, 70_000, LONG - 10))}
        case "delay":
            # The longer ones reach the store when the client has given them up.
            return {"delay": choose.choice((0.01, 0.1, READ_TIMEOUT + 0.2))}
        case _:
            return {"hold": choose.choice(("request", "reply"))}


def go_wrong(proxy: FaultProxy, bucket: str, choose: random.Random) -> None:
    """Rules for all of a night."""
    share = choose.choice((0.02, 0.05, 0.1, 0.25))
    for number in range(1, REQUESTS):
        if choose.random() < share:
            proxy.on("", bucket, nth=number, times=choose.choice((1, 1, 1, 3)), **fault(choose))
    if choose.random() < 0.5:
        method, key = choose.choice(FOR_EVER)
        proxy.on(method, f"{bucket}.*{key}", nth=choose.randint(1, 3), **fault(choose))


def hasty(changes: pytest.MonkeyPatch) -> None:
    """All that waits for the store to be well again waits next to nothing."""
    changes.setenv("RAYORCH_PREFECT_READ_TIMEOUT", str(READ_TIMEOUT))
    changes.setenv("AWS_MAX_ATTEMPTS", "3")
    changes.setenv("AWS_RETRY_MODE", "standard")  # the adaptive one holds all requests back
    changes.setattr(ExponentialBackoff, "delay_amount", lambda *_: 0.01)
    changes.setattr(upload_groups, "_FIRST_PAUSE", 0.02)
    changes.setattr(pauses, "FIRST_PROBE_S", 0.05)
    changes.setattr(lease, "_LONGEST_REQUEST", READ_TIMEOUT)
    changes.setattr(tests.binding.small_night, "PROBE_SECONDS", READ_TIMEOUT)


def two_nights(bucket: Bucket, proxy: FaultProxy, seed: int) -> float:
    """One with the seed's faults and one without; seconds of the first. See the module."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setenv("RAYORCH_PREFECT_PART_BYTES", str(PART_BYTES))
        return _two_nights(bucket, proxy, seed)


def _two_nights(bucket: Bucket, proxy: FaultProxy, seed: int) -> float:
    bucket.put_sources(**{name: {"n": n} for name, n in NAMES.items()})
    there = Slice(bucket, "out", "small", small.plan.fingerprint)
    # Where it cannot let go of its lease, the next night need not wait for it to expire.
    dead = replace(Process.this(), started="never")
    rows, took = stumbled(bucket, there, proxy, seed, Owner("first", "first", process=dead))

    assert took < END_SECONDS
    published = ended_rightly(rows)
    assert published <= there.whole()
    there.check_outputs()
    time.sleep(0.1)  # requests that were held reach the store now

    again = small_night(bucket.source, there.destination, Owner("second", "second"))
    assert {row.outcome for row in again} <= {RowOutcome.PUBLISHED, RowOutcome.SKIPPED}
    skipped = {name_of(row) for row in again if row.outcome is RowOutcome.SKIPPED}
    assert published <= skipped
    there.check(f"{there.destination}_rayorch/small/manifests/second/", "second")
    return took


def stumbled(
    bucket: Bucket, there: Slice, proxy: FaultProxy, seed: int, owner: Owner
) -> tuple[list[Row], float]:
    """A night's rows, none if it could not go on, and its seconds."""
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as changes:
        hasty(changes)
        go_wrong(proxy, bucket.name, random.Random(seed))
        try:
            return small_night(bucket.source, there.destination, owner), time.monotonic() - begun
        except (StoreError, LeaseLost, BackendDown):
            return [], time.monotonic() - begun
        finally:
            proxy.remove()


def ended_rightly(rows: list[Row]) -> set[str]:
    """The published; the others have failed for the store's sake alone."""
    assert not rows or sorted(map(name_of, rows)) == sorted(NAMES)
    for row in rows:
        if row.failure is not None:
            assert row.failure.kind in (Kind.UPLOAD_FAILED, Kind.ATTEMPTS_EXHAUSTED), row.failure
            assert row.failure.type in ("StoreUnavailable", "StoreError"), row.failure
            assert "s3://" in row.failure.message
    return {name_of(row) for row in rows if row.failure is None}


def name_of(row: Row) -> str:
    return row.source.key.removeprefix("in/").removesuffix(".json")


def empty(bucket: Bucket) -> None:
    """moto keeps all that is in a bucket in memory."""
    for key in list_keys(S3Location(bucket.name, "")):
        s3_client().delete_object(Bucket=bucket.name, Key=key)


def main(first: int, end: int) -> None:
    """The nights of all these seeds; raises SystemExit with the number of those that went wrong."""
    wrong = 0
    with ExitStack() as stack:
        store = stack.enter_context(running_store("moto"))
        proxy = stack.enter_context(FaultProxy(store.endpoint))
        Store("moto", proxy.endpoint).use(stack.enter_context(pytest.MonkeyPatch.context()))
        for seed in range(first, end):
            bucket = new_bucket(f"seed-{seed}")
            try:
                print(f"seed {seed}: {two_nights(bucket, proxy, seed):.1f} s", flush=True)
            except Exception:
                wrong += 1
                print(f"seed {seed} went wrong:\n{traceback.format_exc()}", flush=True)
            empty(bucket)
    raise SystemExit(wrong)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
