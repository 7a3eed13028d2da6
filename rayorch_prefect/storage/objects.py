"""Whole objects in and out of the store, with what it answers checked."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.answers import error_code, etag_of, expected, explained
from rayorch_prefect.storage.client import s3_client, with_whole_body
from rayorch_prefect.storage.locations import S3Location

MAX_OBJECT_BYTES = 5 * 1024**3


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


def put_object(location: S3Location, key: str, content: bytes, content_type: str) -> Artifact:
    """Store `content` under the whole `key` in one request and check the size it has there.

    Raises StoreError: refused, above 5 GiB, or stored with another size.
    """
    uri = location.uri_of(key)
    if len(content) > MAX_OBJECT_BYTES:
        raise StoreError(
            f"could not write {uri}: {len(content)} bytes are above the 5 GiB limit of one "
            "upload; publish smaller outputs"
        )
    digest = sha256(content).hexdigest()
    client = s3_client()
    with explained("write", uri):
        answer = client.put_object(
            Bucket=location.bucket,
            Key=key,
            Body=content,
            ContentType=content_type,
            Metadata={"sha256": digest},
        )
        head = client.head_object(Bucket=location.bucket, Key=key)
    etag = etag_of(answer, "write", uri)
    stored = expected(head, "ContentLength", "write", uri)
    if stored != len(content):
        raise StoreError(
            f"{uri} has {stored} bytes after {len(content)} were written; is something else "
            "writing there, or does a proxy cut uploads?"
        )
    return Artifact(key, uri, len(content), digest, etag)


def get_object(location: S3Location, key: str) -> bytes | None:
    """The content under the whole `key`, None if there is none. Raises StoreError."""

    def download() -> bytes:
        answer = s3_client().get_object(Bucket=location.bucket, Key=key)
        with closing(answer["Body"]) as body:
            etag_of(answer, "read", uri)
            return body.read()

    uri = location.uri_of(key)
    with explained("read", uri):
        try:
            return with_whole_body(download)
        except ClientError as error:
            if error_code(error) in ("NoSuchKey", "404"):
                return None
            raise
