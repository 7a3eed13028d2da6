"""The servers of the tests themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from werkzeug.serving import make_server

from rayorch_prefect.storage import S3Location, list_sources, probe
from tests.stores import Store, forwarding_to

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEYS = ["in/a b+c%20d.json", "in/caf\u00e9.json", "in/cafe\u0301.json", "in/?q=1#f", "in/x"]


@pytest.fixture
def door(s3_store: Store) -> Iterator[Store]:
    """The store behind a server of ours."""
    server = make_server("127.0.0.1", 0, forwarding_to(s3_store.endpoint), threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield Store(s3_store.name, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_store_behind_a_door_is_the_same_store(
    s3: S3Client, bucket: str, incoming: S3Location, door: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    listed, features = list(list_sources(incoming)), probe(incoming)
    door.use(monkeypatch)
    through = list(list_sources(incoming))
    assert through == listed
    assert [source.read() for source in through] == [source.key.encode() for source in listed]
    seen = probe(incoming)
    assert seen.endpoint == door.endpoint != features.endpoint
    assert seen.describe().partition(" honours")[2] == features.describe().partition(" honours")[2]
