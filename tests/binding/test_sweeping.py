"""Uploads in parts that somebody left open: a run that died, or a night that is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.client import s3_client
from tests.binding.conftest import RunNightly
from tests.services import Bucket, S3Server, on_stores

PART = 5 * 1024**2


def open_uploads(bucket: Bucket) -> list[str]:
    """The keys of the uploads that are open."""
    client = s3_client()
    try:
        found = client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    except client.exceptions.NoSuchUpload:
        return []  # rclone's word for a bucket that never had any
    return [each.get("Key", "") for each in found]


@pytest.mark.slow
@on_stores
async def test_a_night_closes_what_it_finds_and_what_it_leaves(
    bucket: Bucket,
    s3_server: S3Server,
    run_nightly: RunNightly,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYORCH_PREFECT_PART_BYTES", str(PART))
    log = tmp_path / "log"
    bucket.put_sources(a={"log": str(log), "times": PART + 1})
    notes = Shelf(S3Location(bucket.name, "out/"), "traced", "").open_uploads
    for key in ("out/in/dead.json.txt", "out/in/of-others"):
        s3_client().create_multipart_upload(Bucket=bucket.name, Key=key)
    bucket.put(f"{notes.prefix}x.json", b'{"key": "out/in/dead.json.txt"}')

    second_part = s3_server.proxy.on("PUT", f"{bucket.name}.*partNumber=2", hold="reply")
    running = asyncio.ensure_future(run_nightly("tests.binding.lethal:traced"))
    await asyncio.to_thread(second_part.wait)
    assert sorted(open_uploads(bucket)) == ["out/in/a.json.txt", "out/in/of-others"]
    (note,) = bucket.keys(notes.prefix)
    assert not note.endswith("/x.json")

    running.cancel()
    assert (await running).state.is_cancelled()
    assert open_uploads(bucket) == ["out/in/of-others"]
    assert bucket.keys(notes.prefix) == []
    s3_server.proxy.remove(second_part)

    assert (await run_nightly("tests.binding.lethal:traced")).outcomes == {"in/a.json": "published"}
    assert bucket.get("out/in/a.json.txt") == b"a" * (PART + 1)
    assert open_uploads(bucket) == ["out/in/of-others"]
    assert bucket.keys(notes.prefix) == []
