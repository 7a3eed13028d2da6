from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import S3Location, Source, list_sources, publish

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

AWKWARD = [
    "in/a b+c%20d.json",
    "in/café.json",
    "in/cafe\u0301.json",
    "in//lead.json",
    "in/x//y.json",
    "in/doc-📄.json",
]
HARDER = ["in/tab\t&<>\"'", "in/?q=1#f", "in/%2B+%25", "in/back\\slash", "in/1~2B"]


def test_listing_pages_and_ends_at_the_boundary(s3: S3Client, bucket: str) -> None:
    wanted = {f"in/{number:05d}.json" for number in range(2005)}
    others = {f"in_private/{number}.json" for number in range(3)}

    def put(key: str) -> None:
        s3.put_object(Bucket=bucket, Key=key, Body=b"{}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, wanted | others))
    for url in (f"s3://{bucket}/in/", f"s3://{bucket}/in"):
        keys = [source.key for source in list_sources(S3Location.parse(url))]
        assert len(keys) == 2005
        assert set(keys) == wanted
    everything = list(list_sources(S3Location.parse(f"s3://{bucket}")))
    assert len(everything) == 2008


def test_awkward_keys_are_listed_read_and_published_byte_for_byte(
    s3: S3Client, bucket: str, incoming: S3Location, outgoing: S3Location
) -> None:
    for number, key in enumerate(AWKWARD + HARDER):
        s3.put_object(Bucket=bucket, Key=key, Body=f"body {number}".encode())
    sources = list(list_sources(incoming))
    assert sorted(source.key for source in sources) == sorted(AWKWARD + HARDER)
    for source in sources:
        number = (AWKWARD + HARDER).index(source.key)
        assert source.uri == f"s3://{bucket}/{source.key}"
        assert source.read() == f"body {number}".encode()
        publish({"number": number}, outgoing, source.key)
    stored = {source.key for source in list_sources(S3Location(bucket))} - set(AWKWARD + HARDER)
    assert len(stored) == len(AWKWARD + HARDER)
    assert all(key.startswith("out/") for key in stored)


def test_folder_markers_are_skipped_and_empty_files_are_not(
    s3: S3Client, bucket: str, incoming: S3Location
) -> None:
    for key, body in [("in/", b""), ("in/sub/", b""), ("in/empty", b""), ("in/odd/", b"x")]:
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    assert [source.key for source in list_sources(incoming)] == ["in/empty", "in/odd/"]


def test_a_source_tells_bucket_size_and_etag_and_is_picklable(
    s3: S3Client, bucket: str, incoming: S3Location
) -> None:
    answer = s3.put_object(Bucket=bucket, Key="in/a", Body=b"12345")
    (source,) = list_sources(incoming)
    assert source == Source(f"s3://{bucket}/in/a", answer["ETag"].strip('"'), 5, "in/a")
    assert (source.bucket, source.pin, source.version) == (bucket, source.etag, None)
    assert pickle.loads(pickle.dumps(source)).read() == b"12345"


def test_an_empty_prefix_lists_nothing(incoming: S3Location) -> None:
    assert list(list_sources(incoming)) == []


def test_a_missing_bucket_says_what_to_do(s3: S3Client) -> None:
    with pytest.raises(
        StoreError, match=r"list s3://no-such-bucket/in/: NoSuchBucket.*check the name"
    ):
        list(list_sources(S3Location("no-such-bucket", "in/")))


def test_a_store_that_is_not_there_says_what_to_do(
    s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(StoreError, match="check AWS_ENDPOINT_URL"):
        list(list_sources(S3Location("bucket", "in/")))
