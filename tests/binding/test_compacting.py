"""The run that owns a place compacts its ledger as it plans; nobody else does."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.errors import LeaseLost
from rayorch_prefect.storage import RowOutcome, S3Location, Source
from rayorch_prefect.storage.lease import acquire, lease_file
from rayorch_prefect.storage.lease_file import LeaseRecord
from rayorch_prefect.storage.owner import Owner
from tests.services import Bucket, on_stores


@on_stores
def test_the_owner_compacts_many_entries(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayorch_prefect.storage.ledger.COMPACT_AT", 3)
    destination = S3Location.parse(bucket.destination)
    shelf = Shelf(destination, "joined", "f" * 64)
    file = lease_file(destination, "joined", 60.0)
    lease = acquire(file, Owner("id", "first"), 60.0, False, time.sleep)
    owned = replace(shelf, fence=lease.fence())
    for name in "ab":
        owned.record(Row(Source(f"s3://b/{name}", "e", 1, name), RowOutcome.DROPPED))
    owned.entries()
    assert len(bucket.keys("out/_rayorch/joined/ledger/")) == 2

    owned.record(Row(Source("s3://b/c", "e", 1, "c"), RowOutcome.DROPPED))
    assert len(shelf.entries()) == 3  # a dry run: it owns nothing and writes nothing
    assert len(bucket.keys("out/_rayorch/joined/ledger/")) == 3
    assert len(owned.entries()) == 3
    (key,) = bucket.keys("out/_rayorch/joined/ledger/")
    assert "/compacted-00000001-" in key
    assert len(shelf.entries()) == 3

    for name in "abc":
        owned.record(Row(Source(f"s3://b/{name}", "e", 1, name), RowOutcome.DROPPED))
    file.overwrite(LeaseRecord("other", Owner("id-2", "taker"), 60.0))
    time.sleep(2.1)
    with pytest.raises(LeaseLost, match="was taken by flow run taker"):
        owned.entries()
    assert len(bucket.keys("out/_rayorch/joined/ledger/")) == 4
