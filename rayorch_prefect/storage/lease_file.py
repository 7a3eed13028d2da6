"""The lease of one (destination, program) as an object: who owns it and when it last beat.

`<destination>/_rayorch/<program>/lease.json`. Its age is the store's own: the Date of an answer
less the LastModified in it, so no two clocks are compared. It is never deleted: an owner that ends
writes into it that it has let go.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.answers import error_code, etag_of, explained
from rayorch_prefect.storage.client import with_whole_body
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.owner import Owner, Process
from rayorch_prefect.storage.state_folder import state_location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_FORMAT = 1
_ABSENT = ("NoSuchKey", "404")
_REFUSED = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409", *_ABSENT)


def clock() -> float:
    """Seconds that go on while the machine sleeps, where the system counts them."""
    source = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(source)


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the object says.

    `token` is that of one holding, `beat` counts its heartbeats; the lease is free `expires`
    seconds after the last, or at once when it is `released`. `beaten` is an ISO time in UTC by the
    owner's clock, for people only.
    """

    token: str
    owner: Owner
    expires: float
    beat: int = 0
    released: bool = False
    beaten: str = ""

    def next(self, released: bool = False) -> LeaseRecord:
        """The record of the next heartbeat, or of the end."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return replace(self, beat=self.beat + 1, released=released, beaten=now)

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LeaseRecord:
        """Raises ValueError, TypeError, KeyError or AttributeError for what is no such record."""
        record = json.loads(content)
        if record.pop("format") != _FORMAT:
            raise ValueError("written by another version of this package")
        owner = record.pop("owner")
        process = Process(**owner.pop("process"))
        return cls(owner=Owner(process=process, **owner), **record)


@dataclass(frozen=True, slots=True)
class Sighting:
    """The record as it was read: its ETag, its age in seconds by the store's clock if it told.

    `asked_at` is `clock()` before the request. Headers count whole seconds, so the true age lies
    within one second of `age`.
    """

    record: LeaseRecord
    etag: str
    age: float | None
    asked_at: float


class LeaseFile:
    """Reads and writes the object through `client`."""

    def __init__(self, destination: S3Location, program: str, client: S3Client) -> None:
        self.destination = destination
        self.program = program
        self.location = state_location(destination, program)
        self._client = client

    @property
    def uri(self) -> str:
        return self.location.uri_of(self._key)

    def look(self) -> Sighting | None:
        """What it says now, None if there is none. Raises StoreError, also for what is no lease."""
        asked_at = clock()
        with explained("read", self.uri):
            try:
                content, answer = with_whole_body(self._download)
            except ClientError as error:
                if error_code(error) in _ABSENT:
                    return None
                raise
        etag = etag_of(answer, "read", self.uri)
        return Sighting(self._read(content), etag, _age(answer), asked_at)

    def create(self, record: LeaseRecord) -> str | None:
        """Write where there is none; the ETag, or None if there is one."""
        return self._put(record, IfNoneMatch="*")

    def replace(self, record: LeaseRecord, etag: str) -> str | None:
        """Write in place of what has this ETag; the new ETag, or None if that is gone."""
        return self._put(record, IfMatch=f'"{etag}"')

    def overwrite(self, record: LeaseRecord) -> str:
        """Write whatever is there; the ETag. Raises StoreError."""
        etag = self._put(record)
        if etag is None:
            raise StoreError(f"could not write {self.uri}: the store refused a plain request")
        return etag

    @property
    def _key(self) -> str:
        return f"{self.location.prefix}lease.json"

    def _put(self, record: LeaseRecord, **condition: str) -> str | None:
        with explained("write", self.uri):
            try:
                answer = self._client.put_object(
                    Bucket=self.location.bucket,
                    Key=self._key,
                    Body=record.to_json(),
                    ContentType="application/json",
                    **condition,  # type: ignore[arg-type]
                )
            except ClientError as error:
                if not condition or error_code(error) not in _REFUSED:
                    raise
                return self._own(record)
        return etag_of(answer, "write", self.uri)

    def _own(self, record: LeaseRecord) -> str | None:
        """A request that was sent again may be refused for what its first sending wrote."""
        seen = self.look()
        return seen.etag if seen is not None and seen.record == record else None

    def _download(self) -> tuple[bytes, Mapping[str, Any]]:
        answer = self._client.get_object(Bucket=self.location.bucket, Key=self._key)
        with closing(answer["Body"]) as body:
            return body.read(), answer

    def _read(self, content: bytes) -> LeaseRecord:
        try:
            return LeaseRecord.from_json(content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(
                f"lease {self.uri} is not readable: {error}; make sure that no run of program "
                f"{self.program} writes to {self.destination}, delete that object and run again"
            ) from error


def _age(answer: Mapping[str, Any]) -> float | None:
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    modified = answer.get("LastModified")
    if not date or not isinstance(modified, datetime):
        return None
    try:
        return max(0.0, (parsedate_to_datetime(date) - modified).total_seconds())
    except (ValueError, TypeError):
        return None
