"""H10: keys that tools get wrong are six sources with six outputs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.objects import put_object
from tests.handed.conftest import RunNight, Told
from tests.services import Bucket, new_bucket, on_moto, on_stores

pytestmark = pytest.mark.handed("H10")

CAFE = "in/caf\u00e9.json"
# A store that keeps objects as files has no empty names.
OF_FILES = (
    "in/a b+c%20d.json",
    CAFE,
    unicodedata.normalize("NFD", CAFE),
    "in/doc-📄.json",
)
KEYS = (*OF_FILES, "in//lead.json", "in/x//y.json")


def put_all(bucket: Bucket, keys: Sequence[str]) -> None:
    for n, key in enumerate(keys):
        bucket.put(key, json.dumps({"n": n}).encode())


def keys_for(bucket: Bucket) -> Sequence[str]:
    return OF_FILES if bucket.name.startswith("rclone-") else KEYS


@on_stores
@pytest.mark.parametrize("microbatch_size", [64, pytest.param(1, marks=pytest.mark.slow)])
async def test_awkward_keys(bucket: Bucket, run_night: RunNight, microbatch_size: int) -> None:
    keys = keys_for(bucket)
    put_all(bucket, keys)

    told = await run_night("rowwise.b16r2", microbatch_size=microbatch_size)

    assert told.state == ("COMPLETED", "Completed")
    outputs = assert_all_published(told, bucket, bucket, keys)
    stored = {key for key in bucket.keys("") if not key.startswith("out/_rayorch/")}
    assert stored == {*keys, *outputs}


@on_moto
async def test_outputs_of_keys_that_the_store_would_refuse(
    bucket: Bucket, run_night: RunNight
) -> None:
    """What the one store takes as a source, the other gets as an output: under escaped names."""
    files = new_bucket("rclone")
    place = S3Location(files.name)
    for key in set(KEYS) - set(OF_FILES):
        with pytest.raises(StoreError):
            put_object(place, key, b"{}", "application/json")
    put_all(bucket, KEYS)

    told = await run_night("rowwise.b16r2", destination=files.destination)

    assert told.state == ("COMPLETED", "Completed")
    outputs = assert_all_published(told, bucket, files, KEYS)
    stored = {key for key in files.keys("") if not key.startswith("out/_rayorch/")}
    assert stored == set(outputs)


@on_moto
async def test_an_output_key_that_the_store_refuses_fails_its_parent_alone(
    bucket: Bucket, run_night: RunNight
) -> None:
    files = new_bucket("rclone")
    # The store keeps objects as files: nothing goes below the key of another object.
    files.put("out/in/x", b"a file, not a folder")
    put_all(bucket, KEYS)

    told = await run_night("rowwise.b16r2", destination=files.destination, upload_tries=1)

    assert told.state == ("FAILED", "UploadFailed")
    assert "5 published, 1 failed" in told.message
    (failed,) = [row for row in told.rows if row["row_outcome"] != "published"]
    assert failed["uri"] == f"s3://{bucket.name}/in/x//y.json"
    assert (failed["row_outcome"], failed["kind"], failed["type"]) == (
        "failed",
        "UploadFailed",
        "StoreUnavailable",
    )
    assert "takes no key below the key of another object" in failed["cause"]


def assert_all_published(
    told: Told, sources: Bucket, files: Bucket, keys: Sequence[str]
) -> list[str]:
    """Each key is one source, byte for byte, with one output of its own; the outputs' keys."""
    rows = told.rows
    assert sorted(row["uri"].encode() for row in rows) == sorted(
        f"s3://{sources.name}/{key}".encode() for key in keys
    )
    outputs = [key for row in rows for key in row["output_keys"]]
    assert len(set(outputs)) == len(keys) == len(outputs)
    assert all(key.startswith("out/") for key in outputs)
    for row in rows:
        n = keys.index(row["uri"].removeprefix(f"s3://{sources.name}/"))
        (output,) = row["output_keys"]
        assert files.get(output).count(b"\n") == row["children"] == n
    return outputs
