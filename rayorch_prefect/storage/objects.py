"""Whole objects in and out of the store, with what it answers checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.reading import get_object
from rayorch_prefect.storage.terms import PLAIN, Terms
from rayorch_prefect.storage.uploads import Body, Upload

__all__ = ["MAX_OBJECT_BYTES", "Artifact", "get_object", "put_object"]

MAX_OBJECT_BYTES = 5 * 1024**4


@dataclass(frozen=True, slots=True)
class Artifact:
    """One stored object: `size` in bytes, `sha256` of its content in hex, the store's `etag`.

    `uri` says where it is, `key` by what name within that place; no `etag` outside of S3.
    """

    key: str
    uri: str
    size: int
    sha256: str
    etag: str = ""


def put_object(
    location: S3Location,
    key: str,
    content: bytes,
    content_type: str,
    terms: Terms = PLAIN,
    metadata: Mapping[str, str] | None = None,
) -> Artifact:
    """Store `content` under the whole `key` and check the size and hash that it has there.

    A content longer than `terms.part_bytes` goes in parts; nothing of it is to be seen before it
    is whole. Raises StoreError: refused, above 5 TiB, or stored as something else.
    """
    uri = location.uri_of(key)
    if len(content) > MAX_OBJECT_BYTES:
        raise StoreError(
            f"could not write {uri}: {len(content)} bytes are above the 5 TiB limit of one "
            "object; publish smaller outputs"
        )
    body = Body(content, content_type, terms.part_bytes, metadata or {})
    etag = Upload(location, key, body, terms).run()
    return Artifact(key, uri, len(content), body.sha256.hex(), etag)
