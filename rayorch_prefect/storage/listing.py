"""All sources under a location, in the store's order, keys byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from rayorch_prefect.storage.client import explained, s3_client
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.source import Source, unquoted


def list_sources(location: S3Location) -> Iterator[Source]:
    """Every object under the prefix, page by page, without folder markers.

    A folder marker is an empty object whose key ends with "/". Raises StoreError if the bucket is
    missing or may not be listed.
    """
    for found in _objects(location):
        key, size = found["Key"], found["Size"]
        if size == 0 and key.endswith("/"):
            continue
        yield Source(location.uri_of(key), unquoted(found["ETag"]), size, key)


def list_keys(location: S3Location) -> Iterator[str]:
    """The key of every object under the prefix. Raises StoreError."""
    for found in _objects(location):
        yield found["Key"]


def _objects(location: S3Location) -> Iterator[dict[str, Any]]:
    # botocore asks for url-encoded keys and decodes them, so that no key breaks the XML.
    pages = s3_client().get_paginator("list_objects_v2")
    answers = iter(pages.paginate(Bucket=location.bucket, Prefix=location.prefix))
    while True:
        with explained("list", str(location)):
            answer = next(answers, None)
        if answer is None:
            return
        yield from cast("list[dict[str, Any]]", answer.get("Contents", []))
