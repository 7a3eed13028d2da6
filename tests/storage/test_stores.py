"""The servers of the tests themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayorch_prefect.storage import S3Location, list_sources
from tests.storage.conftest import Door

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEYS = ["in/a b+c%20d.json", "in/café.json", "in/cafe\u0301.json", "in/?q=1#f", "in/x"]


def test_a_store_behind_a_door_is_the_same_store(
    s3: S3Client, bucket: str, incoming: S3Location, door: Door
) -> None:
    etags = {key: s3.put_object(Bucket=bucket, Key=key, Body=key.encode())["ETag"] for key in KEYS}
    through = list(list_sources(incoming))
    assert {source.key: f'"{source.etag}"' for source in through} == etags
    assert [source.read().decode() for source in through] == [source.key for source in through]
