"""One content on its way to one key: whole or in parts, then looked at where it lies.

A write whose answer was lost may have been done: what is there is looked at before the write is
called refused.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import md5, sha256
from typing import Any

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError, StoreUnavailable
from rayorch_prefect.storage.answers import (
    NOT_THERE,
    REFUSED_CONDITION,
    error_code,
    etag_of,
    expected,
    explained,
)
from rayorch_prefect.storage.client import s3_client, with_whole_body
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.open_uploads import abort_upload, closed_at_the_end
from rayorch_prefect.storage.terms import Terms

_MOST_PARTS = 10_000
_REPLACEMENTS = 3
_READ_BYTES = 1024**2
_LOST_ANSWER = (*REFUSED_CONDITION, *NOT_THERE, "NoSuchUpload")

_NO_CONDITIONS = ("NotImplemented", "501")

Condition = dict[str, Any]


@dataclass(frozen=True)
class Body:
    """A content, which can be sent again and again, and what the store should say of it."""

    content: bytes
    type: str
    part_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.content)

    @property
    def split(self) -> bool:
        """Whether it is too long for one request."""
        return len(self.content) > self.part_bytes

    def parts(self) -> Iterator[memoryview]:
        """Views one after another, of which one is copied at a time."""
        size = max(self.part_bytes, -(-len(self.content) // _MOST_PARTS))
        view = memoryview(self.content)
        for start in range(0, len(self.content), size):
            yield view[start : start + size]

    @cached_property
    def sha256(self) -> bytes:
        return sha256(self.content).digest()

    def has_etag(self, etag: str) -> bool:
        """Whether this is S3's ETag of the content, whole or in these parts."""
        return etag == (self._etag_of_parts if "-" in etag else self._etag_of_whole)

    @cached_property
    def _etag_of_whole(self) -> str:
        return _md5(self.content).hex()

    @cached_property
    def _etag_of_parts(self) -> str:
        digests = [_md5(part) for part in self.parts()]
        return f"{_md5(b''.join(digests)).hex()}-{len(digests)}"


def _md5(content: bytes | memoryview) -> bytes:
    return md5(content, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class Upload:
    """Writes `body` under the whole `key` by the store's terms."""

    location: S3Location
    key: str
    body: Body
    terms: Terms

    @property
    def uri(self) -> str:
        return self.location.uri_of(self.key)

    def run(self) -> str:
        """Write and check; the ETag. Raises StoreError.

        An upload in parts that fails, however it fails, is closed at the store.
        """
        if self.body.split:
            self._send_parts()
        else:
            self._send_whole()
        return self._checked()

    def _send_whole(self) -> None:
        fields = self._described()
        if self.terms.checksums:
            fields["ChecksumSHA256"] = b64encode(self.body.sha256).decode()

        def put(condition: Condition) -> None:
            answer = s3_client(self.location.access).put_object(
                **self._at, **fields, **condition, Body=self.body.content
            )
            etag_of(answer, "write", self.uri)

        self._unless_changed(put)

    def _send_parts(self) -> None:
        with closed_at_the_end(self.terms.open_uploads, self.location, self.key) as may_come_late:
            created = self._created(may_come_late)
            id = str(expected(created, "UploadId", "write", self.uri))
            try:
                self._send_all({**self._at, "UploadId": id})
            except BaseException:
                # By its name, too: not everyone may list uploads.
                with suppress(StoreError):
                    abort_upload(self.location, self.key, id)
                raise

    def _created(self, may_come_late: Callable[[], None]) -> dict[str, Any]:
        """An upload in parts, begun. A request that got no answer may begin one at any time."""
        try:
            with explained("write", self.uri):
                created: Any = s3_client(self.location.access).create_multipart_upload(
                    **self._at, **self._described()
                )
        except BaseException as error:
            if isinstance(error, StoreUnavailable) or not isinstance(error, StoreError):
                may_come_late()
            raise
        if created.get("ResponseMetadata", {}).get("RetryAttempts"):
            may_come_late()
        return dict(created)

    def _send_all(self, upload: dict[str, Any]) -> None:
        numbered = enumerate(self.body.parts(), start=1)
        parts: Any = [self._send_part(upload, number, part) for number, part in numbered]

        def complete(condition: Condition) -> None:
            s3_client(self.location.access).complete_multipart_upload(
                **upload, MultipartUpload={"Parts": parts}, **condition
            )

        self._unless_changed(complete)

    def _send_part(self, upload: dict[str, Any], number: int, part: memoryview) -> dict[str, Any]:
        with explained("write", f"{self.uri} (part {number})"):
            answer = s3_client(self.location.access).upload_part(
                **upload, PartNumber=number, Body=bytes(part)
            )
        etag_of(answer, "write", self.uri)
        # Checksums that boto3 was set to send must be named again at the end.
        sums = {name: sum for name, sum in answer.items() if name.startswith("Checksum")}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def _unless_changed(self, write: Callable[[Condition], None]) -> None:
        """Write on the condition that there is still what was seen there, nothing at first."""
        condition: Condition = {"IfNoneMatch": "*"} if self.terms.conditional else {}
        with explained("write", self.uri):
            for _ in range(_REPLACEMENTS):
                try:
                    return write(condition)
                except ClientError as error:
                    if condition and error_code(error) in _NO_CONDITIONS:
                        # Honoured for whole objects, as seen, but not for those in parts.
                        return write({})
                    if error_code(error) not in _LOST_ANSWER:
                        raise
                    there = self._found()
                    if there and self._is_ours(there):
                        return None
                    if error_code(error) not in REFUSED_CONDITION:
                        raise
                    condition = {"IfMatch": there["ETag"]} if there else {"IfNoneMatch": "*"}
        raise StoreError(
            f"could not write {self.uri}: something else writes there at the same time; is "
            "another run publishing to this destination?"
        )

    def _found(self) -> dict[str, Any] | None:
        """What is under the key now. A refusal to look is raised, never taken for absence."""
        mode: dict[str, Any] = {"ChecksumMode": "ENABLED"} if self.terms.checksums else {}
        try:
            return dict(s3_client(self.location.access).head_object(**self._at, **mode))
        except ClientError as error:
            if error_code(error) in NOT_THERE:
                return None
            raise

    def _is_ours(self, there: dict[str, Any]) -> bool:
        """Whether the store's own hash says that this content lies there."""
        if there.get("ContentLength") != len(self.body):
            return False
        sum = there.get("ChecksumSHA256")
        if sum is not None and sum == b64encode(self.body.sha256).decode():
            return True
        return self.body.has_etag(str(there.get("ETag", "")).strip('"'))

    def _checked(self) -> str:
        with explained("write", self.uri):
            there = self._found()
        if there is None:
            raise StoreError(f"{self.uri} is not there after it was written; run again")
        stored = expected(there, "ContentLength", "write", self.uri)
        if stored != len(self.body):
            raise StoreError(
                f"{self.uri} has {stored} bytes after {len(self.body)} were written; is something "
                "else writing there, or does a proxy cut uploads?"
            )
        # An encrypting store's ETag says nothing of the content: then it is read back.
        if not self._is_ours(there) and self._read_back() != self.body.sha256:
            raise StoreError(
                f"{self.uri} holds other bytes than the {stored} that were written; is something "
                "else writing there, or does a proxy change bodies?"
            )
        return etag_of(there, "write", self.uri)

    def _read_back(self) -> bytes:
        """The SHA-256 of what is there, without holding it."""

        def download() -> bytes:
            seen = sha256()
            with closing(s3_client(self.location.access).get_object(**self._at)["Body"]) as body:
                while chunk := body.read(_READ_BYTES):
                    seen.update(chunk)
            return seen.digest()

        with explained("read", self.uri):
            return with_whole_body(download)

    @property
    def _at(self) -> dict[str, Any]:
        return {"Bucket": self.location.bucket, "Key": self.key}

    def _described(self) -> dict[str, Any]:
        metadata = {**self.body.metadata, "sha256": self.body.sha256.hex()}
        return {"ContentType": self.body.type, "Metadata": metadata}
