from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import SourceMissing, StoreError, UsageError
from rayorch_prefect.storage import S3Location, Source, list_sources, publish, refuse_empty
from tests.stores import Store

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
# What a store cannot take that keeps objects as files.
REFUSED_BY_FILES = ["in//lead.json", "in/x//y.json"]
HARDER = ["in/tab\t&<>\"'", "in/?q=1#f", "in/%2B+%25", "in/back\\slash", "in/1~2B"]


def test_awkward_keys_are_listed_read_and_published_byte_for_byte(
    s3: S3Client, s3_store: Store, bucket: str, incoming: S3Location, outgoing: S3Location
) -> None:
    refused = REFUSED_BY_FILES if s3_store.keeps_files else []
    keys = [key for key in AWKWARD + HARDER if key not in refused]
    for number, key in enumerate(keys):
        s3.put_object(Bucket=bucket, Key=key, Body=f"body {number}".encode())
    sources = list(list_sources(incoming))
    assert sorted(source.key for source in sources) == sorted(keys)
    for source in sources:
        number = keys.index(source.key)
        assert source.uri == f"s3://{bucket}/{source.key}"
        assert source.read() == f"body {number}".encode()
        publish({"number": number}, outgoing, source.key)
    stored = {source.key for source in list_sources(S3Location(bucket))} - set(keys)
    assert len(stored) == len(keys)
    assert all(key.startswith("out/") for key in stored)


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
@pytest.mark.parametrize("key", REFUSED_BY_FILES)
def test_a_key_that_the_store_refuses_is_a_failure_of_that_source_alone(
    s3: S3Client, bucket: str, outgoing: S3Location, key: str
) -> None:
    with pytest.raises(s3.exceptions.ClientError, match="unsupported characters"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    with pytest.raises(StoreError, match=f"read s3://{bucket}/{key}: InvalidArg.*rename") as caught:
        Source(f"s3://{bucket}/{key}", "e1", 1, key).read()
    assert not isinstance(caught.value, SourceMissing)
    # A source of that name, from another store, is published all the same.
    (artifact,) = publish("x", outgoing, key).artifacts
    assert "//" not in artifact.key
    assert [each.read() for each in list_sources(outgoing)] == [b"x"]


def test_folder_markers_are_skipped_and_empty_files_are_not(
    s3: S3Client, s3_store: Store, bucket: str, incoming: S3Location
) -> None:
    for key, body in [("in/sub/", b""), ("in/empty", b""), ("in/odd/", b"x")]:
        s3.put_object(Bucket=bucket, Key=key, Body=body)
    # A store of files drops the last slash: its markers are files like any other.
    expected = ["in/empty", "in/odd", "in/sub"] if s3_store.keeps_files else ["in/empty", "in/odd/"]
    sources = list(list_sources(incoming))
    assert [source.key for source in sources] == expected
    assert [source.read() for source in sources] == [b"", b"x", b""][: len(expected)]


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


def test_an_empty_prefix_is_told_with_its_neighbours(
    s3: S3Client, bucket: str, incoming: S3Location
) -> None:
    with pytest.raises(UsageError, match=rf"no object under {incoming}.*nothing under s3://"):
        refuse_empty(incoming)
    for key in ("in_private/a", "out/b", "readme"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    with pytest.raises(UsageError, match=rf"s3://{bucket}/ holds in_private/, out/, readme"):
        refuse_empty(incoming)
    with pytest.raises(UsageError, match=rf"s3://{bucket}/in_private/ holds in_private/a"):
        refuse_empty(S3Location(bucket, "in_private/deep/"))
    with pytest.raises(UsageError, match=rf"s3://{bucket}/out/b is an object: give the folder"):
        refuse_empty(S3Location(bucket, "out/b"))


def test_a_missing_bucket_says_what_to_do(s3: S3Client) -> None:
    with pytest.raises(
        StoreError, match=r"list s3://no-such-bucket/in/: NoSuchBucket.*check the name"
    ):
        list(list_sources(S3Location("no-such-bucket", "in/")))
