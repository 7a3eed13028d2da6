from __future__ import annotations

import pytest

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage import S3Location, output_key, refuse_nested


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://b-1/in/", "b-1", "in/"),
        ("s3://b-1/in", "b-1", "in/"),
        ("s3://b-1", "b-1", ""),
        ("s3://b-1/", "b-1", ""),
        ("s3://b-1/a b%20c/?x", "b-1", "a b%20c/?x/"),
        ("s3://b-1/a//", "b-1", "a//"),
    ],
)
def test_a_prefix_ends_at_a_boundary(url: str, bucket: str, prefix: str) -> None:
    assert S3Location.parse(url) == S3Location(bucket, prefix)


@pytest.mark.parametrize(
    "url", ["", "b/in", "https://b/in", "s3:/b/in", "s3://", "s3:///in", "s3://b b/"]
)
def test_another_url_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UsageError, match="expected s3://bucket/prefix/") as caught:
        S3Location.parse(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("in/", "in/"),
        ("in", "in/out"),
        ("", "out/"),
        ("", ""),
        # The layout repeats the source's prefix under the destination, and so leads back.
        ("in/", ""),
        ("a/a/", "a/"),
        ("out/_rayorch/p/", "out/"),
    ],
)
def test_a_destination_that_feeds_the_source_is_refused(source: str, destination: str) -> None:
    with pytest.raises(UsageError, match="outside the source prefix"):
        refuse_nested(S3Location("b-1", source), S3Location("b-1", destination))


@pytest.mark.parametrize(
    ("source", "destination"), [("in/", "out/"), ("in/", "in_out/"), ("data/in/", "data/")]
)
def test_a_destination_beside_or_above_is_fine(source: str, destination: str) -> None:
    refuse_nested(S3Location("b-1", source), S3Location("b-1", destination))
    assert not output_key(destination, f"{source}x.pdf", ".md").startswith(source)


def test_another_bucket_is_never_nested() -> None:
    refuse_nested(S3Location("b-1", "in/"), S3Location("b-2", "in/x/"))
