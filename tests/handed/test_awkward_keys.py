"""H10: keys that tools get wrong are six sources with six outputs."""

from __future__ import annotations

import json
import unicodedata

import pytest

from tests.handed.conftest import RunNight
from tests.services import Bucket

pytestmark = pytest.mark.handed("H10")

CAFE = "in/caf\u00e9.json"
KEYS = (
    "in/a b+c%20d.json",
    CAFE,
    unicodedata.normalize("NFD", CAFE),
    "in//lead.json",
    "in/x//y.json",
    "in/doc-📄.json",
)


@pytest.mark.parametrize("microbatch_size", [64, 4])
async def test_awkward_keys(bucket: Bucket, run_night: RunNight, microbatch_size: int) -> None:
    for n, key in enumerate(KEYS):
        bucket.put(key, json.dumps({"n": n}).encode())

    told = await run_night("rowwise.b16r2", microbatch_size=microbatch_size)

    assert told.state == ("COMPLETED", "Completed")
    rows = told.rows
    assert sorted(row["uri"].encode() for row in rows) == sorted(
        f"s3://{bucket.name}/{key}".encode() for key in KEYS
    )
    outputs = [key for row in rows for key in row["output_keys"]]
    assert len(set(outputs)) == len(KEYS) == len(outputs)
    stored = {key for key in bucket.keys("") if not key.startswith("out/_rayorch/")}
    assert stored == {*KEYS, *outputs}
    assert all(key.startswith("out/") for key in outputs)
    for row in rows:
        n = KEYS.index(row["uri"].removeprefix(f"s3://{bucket.name}/"))
        (output,) = row["output_keys"]
        assert bucket.get(output).count(b"\n") == row["children"] == n
