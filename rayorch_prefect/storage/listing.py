"""All sources under a location, in the store's order, keys byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage.answers import etag_of, expected, explained
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.source import Source

# How many of its neighbours are named when a prefix holds nothing.
_NEIGHBOURS = 10


def list_sources(location: S3Location) -> Iterator[Source]:
    """Every object under the prefix, page by page, without folder markers.

    A folder marker is an empty object whose key ends with "/". Raises StoreError if the bucket is
    missing or may not be listed.
    """
    for found in _objects(location):
        key, size = found["Key"], found["Size"]
        if size == 0 and key.endswith("/"):
            continue
        uri = location.uri_of(key)
        yield Source(uri, etag_of(found, "list", uri), size, key, access=location.access)


def list_keys(location: S3Location) -> Iterator[str]:
    """The key of every object under the prefix. Raises StoreError."""
    for found in _objects(location):
        yield found["Key"]


def list_modified(location: S3Location, since: datetime) -> Iterator[str]:
    """The key of every object under the prefix that was written since then. Raises StoreError."""
    for found in _objects(location):
        if found["LastModified"] >= since:
            yield found["Key"]


def list_times(location: S3Location) -> Iterator[tuple[str, datetime]]:
    """The key of every object under the prefix, and when it was written. Raises StoreError."""
    for found in _objects(location):
        yield found["Key"], found["LastModified"]


def refuse_empty(location: S3Location) -> None:
    """Say what is there instead of the sources that were expected under `location`.

    Always raises: UsageError, or StoreError if the store refuses even this listing.
    """
    above = location.at(location.prefix[:-1].rpartition("/")[0])
    with explained("list", str(above)):
        answer = s3_client(location.access).list_objects_v2(
            Bucket=above.bucket, Prefix=above.prefix, Delimiter="/", MaxKeys=_NEIGHBOURS
        )
    expected(answer, "IsTruncated", "list", str(above))
    folders = [found.get("Prefix", "") for found in answer.get("CommonPrefixes", [])]
    objects = [found.get("Key", "") for found in answer.get("Contents", [])]
    if location.prefix[:-1] in objects:
        hint = f"{location.uri_of(location.prefix[:-1])} is an object: give the folder it lies in"
    elif folders or objects:
        hint = f"check the prefix: {above} holds {', '.join((folders + objects)[:_NEIGHBOURS])}"
    else:
        hint = f"there is nothing under {above} either: check the bucket and AWS_ENDPOINT_URL"
    raise UsageError(f"no object under {location}, expected sources there; {hint}")


def _objects(location: S3Location) -> Iterator[dict[str, Any]]:
    # botocore asks for url-encoded keys and decodes them, so that no key breaks the XML.
    pages = s3_client(location.access).get_paginator("list_objects_v2")
    answers = iter(pages.paginate(Bucket=location.bucket, Prefix=location.prefix))
    while True:
        with explained("list", str(location)):
            answer = next(answers, None)
        if answer is None:
            return
        # A page of another kind of server, read as a listing, would look like an empty prefix.
        expected(answer, "IsTruncated", "list", str(location))
        yield from cast("list[dict[str, Any]]", answer.get("Contents", []))
