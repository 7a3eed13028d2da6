"""H9: a store that takes one key at no price fails that parent's upload, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rayorch_prefect.storage.client import ATTEMPTS
from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket, S3Server, on_stores

pytestmark = pytest.mark.handed("H9")

TRIES = 2


@on_stores
async def test_one_upload_fails(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    s3_server: S3Server,
) -> None:
    put(A=2, B=3, C=1)
    output = f"/{bucket.name}/out/in/B.json.txt"

    with s3_server.refusing("PUT", output) as refused:
        night = await run_night("rowwise.b2r1", upload_tries=TRIES)

    assert night.state == ("FAILED", "UploadFailed")
    assert night.outcomes == [("A", "published"), ("B", "failed"), ("C", "published")]
    assert published(bucket) == {"A": whole("A", 2), "C": whole("C", 1)}
    assert TRIES <= refused.hits <= TRIES * ATTEMPTS
    (failed,) = night.table
    assert (failed["kind"], failed["type"]) == ("UploadFailed", "StoreUnavailable")
    (row,) = [row for row in night.rows if row["row_outcome"] == "failed"]
    assert (row["kind"], row["type"]) == ("UploadFailed", "StoreUnavailable")
    assert f"could not write s3:/{output}" in row["cause"]
    assert f"tried {TRIES} times" in row["cause"]
    assert night.uploads == [
        ("in/A.json", "Completed"),
        ("in/B.json", "UploadFailed"),
        ("in/C.json", "Completed"),
    ]
    assert calls.starts == {
        f"{name}/{i}": 1 for name, n in (("A", 2), ("B", 3), ("C", 1)) for i in range(n)
    }
    assert (
        "sources whose upload failed are computed again, as their values are not kept"
        in night.message
    )

    again = await run_night("rowwise.b2r1")

    assert again.state == ("COMPLETED", "Completed")
    assert sorted(again.outcomes) == [("A", "skipped"), ("B", "published"), ("C", "skipped")]
    assert published(bucket)["B"] == whole("B", 3)
    assert calls.starts["B/0"] == 2
    assert calls.starts["A/0"] == calls.starts["C/0"] == 1


@pytest.mark.slow
async def test_a_fault_that_passes_costs_no_child_a_second_call(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    s3_server: S3Server,
) -> None:
    put(A=2, B=3)
    proxy = s3_server.proxy
    # As long as the tries of one request; then credentials that have expired; then a lost answer.
    key = f"/{bucket.name}/out/in/B.json.txt"
    faults = (
        proxy.on("PUT", key, times=ATTEMPTS, answer=(500, "InternalError")),
        proxy.on("PUT", key, nth=ATTEMPTS + 1, times=1, answer=(400, "ExpiredToken")),
        proxy.on("PUT", key, nth=ATTEMPTS + 2, times=1, cut="reply"),
    )
    night = await run_night("rowwise.b2r1")
    proxy.remove(*faults)

    assert night.state == ("COMPLETED", "Completed")
    assert [rule.hits for rule in faults] == [ATTEMPTS, 1, 1]
    assert published(bucket) == {"A": whole("A", 2), "B": whole("B", 3)}
    assert set(calls.starts.values()) == {1}
