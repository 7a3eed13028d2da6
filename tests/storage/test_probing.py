from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage import S3Location, StoreFeatures, list_sources, probe
from tests.fault_proxy import FaultProxy
from tests.stores import Store

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# What each server has been seen to do; a newer release that does more is good news to record.
SEEN = {
    "moto": StoreFeatures(
        endpoint="",
        conditional_create=True,
        conditional_update=True,
        conditional_read=True,
        awkward_keys=True,
        metadata_case=True,
        checksums=False,
    ),
    "rclone": StoreFeatures(
        endpoint="",
        conditional_create=False,
        conditional_update=False,
        conditional_read=False,
        awkward_keys=False,
        metadata_case=False,
        checksums=False,
    ),
}


def test_features_are_seen_and_nothing_is_left(
    s3: S3Client, s3_store: Store, bucket: str, outgoing: S3Location
) -> None:
    s3.put_object(Bucket=bucket, Key="out/kept", Body=b"x")
    features = probe(outgoing)
    assert features.endpoint == s3_store.endpoint
    for name in StoreFeatures.__dataclass_fields__:
        if name != "endpoint":
            assert getattr(features, name) is getattr(SEEN[s3_store.name], name), name
    assert [source.key for source in list_sources(S3Location(bucket))] == ["out/kept"]


def test_a_whole_bucket_can_be_probed(bucket: str) -> None:
    probe(S3Location(bucket))
    assert list(list_sources(S3Location(bucket))) == []


def test_the_description_is_one_line() -> None:
    assert SEEN["moto"].describe() == (
        "store  honours: conditional create, conditional update, conditional read, awkward keys, "
        "metadata case; "
        "not honoured, so not relied on: checksums"
    )
    assert "honours: nothing optional; not honoured" in SEEN["rclone"].describe()


def test_a_missing_bucket_is_told(s3: S3Client, s3_store: Store) -> None:
    wanted = rf"write s3://no-such-bucket/out/_rayorch/probe/.*NoSuchBucket.*{s3_store.endpoint}"
    with pytest.raises(StoreError, match=wanted):
        probe(S3Location("no-such-bucket", "out/"))


@pytest.mark.parametrize(("method", "said"), [("PUT", "write"), ("GET", "read")])
def test_what_a_store_must_do_and_refuses_is_told(
    outgoing: S3Location, proxy: FaultProxy, method: str, said: str
) -> None:
    probe(outgoing)
    proxy.on(method, answer=(403, "AccessDenied"))
    wanted = rf"{said} {outgoing}_rayorch/probe/.*AccessDenied.*s3:PutObject on this place"
    with pytest.raises(StoreError, match=wanted):
        probe(outgoing)


def test_what_may_not_be_removed_is_named_and_no_error(
    bucket: str, outgoing: S3Location, proxy: FaultProxy
) -> None:
    whole = probe(outgoing)
    assert whole.left == ""
    proxy.on("DELETE", answer=(403, "AccessDenied"))

    features = probe(outgoing)

    assert replace(features, left="") == whole
    stays = [source.key for source in list_sources(S3Location(bucket))]
    folder = stays[0].rpartition("/")[0].removesuffix("/")
    assert f"{len(stays)} small objects stay under s3://{bucket}/{folder}/, which" in features.left
    assert "AccessDenied" in features.left


@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)
def test_a_destination_that_the_store_cannot_keep_is_told(bucket: str) -> None:
    with pytest.raises(StoreError, match=r"out//deep/_rayorch/probe/.*choose another prefix"):
        probe(S3Location(bucket, "out//deep/"))
