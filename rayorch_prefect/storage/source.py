"""One source row: an object of the store, pinned to the version that was listed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from rayorch_prefect.errors import SourceChanged, SourceMissing
from rayorch_prefect.storage.access import Access
from rayorch_prefect.storage.answers import error_code, etag_of, explained
from rayorch_prefect.storage.client import s3_client, with_whole_body

if TYPE_CHECKING:
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef


@dataclass(frozen=True, slots=True)
class Source:
    """What a stage gets as its source row; small, picklable, without the bytes.

    `uri` is `s3://bucket/` and the key as it stands, never percent-encoded; `etag` is without
    quotes; `size` is in bytes; `version` is the store's version id where one is pinned; `access` is
    how its store is reached, None for boto3's own chain.
    """

    uri: str
    etag: str
    size: int
    key: str
    version: str | None = None
    access: Access | None = field(default=None, repr=False, compare=False)

    @property
    def bucket(self) -> str:
        return self.uri[len("s3://") : len(self.uri) - len(self.key) - 1]

    @property
    def pin(self) -> str:
        """What tells this content from a later one under the same uri: version or ETag."""
        return self.version or self.etag

    def read(self) -> bytes:
        """The bytes of exactly this version.

        Raises SourceMissing if it is gone, SourceChanged if another content is there now, and
        StoreError for whatever else the store answers.
        """
        with explained("read", self.uri):
            return with_whole_body(self._read_once)

    def _read_once(self) -> bytes:
        answer = self._get()
        # Not `with answer["Body"]`: that hands out the raw stream, which does not count its bytes.
        with closing(answer["Body"]) as body:
            # Some stores ignore IfMatch, so the answer is judged before its bytes are used.
            found = etag_of(answer, "read", self.uri)
            if found != self.etag:
                raise self._changed(f"ETag {found}")
            content = body.read()
        if len(content) != self.size:
            raise self._changed(f"{len(content)} bytes instead of {self.size}")
        return content

    def _get(self) -> GetObjectOutputTypeDef:
        request: dict[str, Any] = {"Bucket": self.bucket, "Key": self.key}
        if self.version is not None:
            request["VersionId"] = self.version
        try:
            return s3_client(self.access).get_object(IfMatch=f'"{self.etag}"', **request)
        except ClientError as error:
            code = error_code(error)
            if code in ("NoSuchKey", "NoSuchVersion", "404"):
                raise SourceMissing(
                    f"{self.uri} (ETag {self.etag}) was listed and is gone; run again to list anew"
                ) from error
            if code in ("PreconditionFailed", "412"):
                raise self._changed("another ETag") from error
            raise

    def _changed(self, found: str) -> SourceChanged:
        return SourceChanged(
            f"{self.uri} was listed with ETag {self.etag} and now has {found}; "
            "run again to take the new content"
        )
