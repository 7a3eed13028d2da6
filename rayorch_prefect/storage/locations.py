"""Where sources are read from and outputs go to: a bucket and a prefix that ends at a boundary."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage.access import Access
from rayorch_prefect.storage.keys import STATE_FOLDER, escape_key

_SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a prefix: "" (the whole bucket) or a text that ends with "/".

    `access` is how its store is reached, None for boto3's own chain.
    """

    bucket: str
    prefix: str = ""
    access: Access | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise UsageError(f"{self.bucket!r} is not a bucket name; expected s3://bucket/prefix/")
        if self.prefix and not self.prefix.endswith("/"):
            object.__setattr__(self, "prefix", self.prefix + "/")

    @classmethod
    def parse(cls, url: str) -> S3Location:
        """Read `s3://bucket/prefix/`; with or without the last "/" it means the same.

        The prefix is taken as it stands, never percent-decoded. Raises UsageError.
        """
        if not url.startswith(_SCHEME):
            raise UsageError(f"{url!r} is not an S3 location; expected s3://bucket/prefix/")
        bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
        if not bucket:
            raise UsageError(f"{url!r} names no bucket; expected s3://bucket/prefix/")
        return cls(bucket, prefix)

    def at(self, prefix: str) -> S3Location:
        """Another prefix of the same bucket, reached in the same way."""
        return S3Location(self.bucket, prefix, self.access)

    def uri_of(self, key: str) -> str:
        """The address of a whole key in this bucket, the key byte for byte."""
        return f"{_SCHEME}{self.bucket}/{key}"

    def __str__(self) -> str:
        return self.uri_of(self.prefix)


def refuse_nested(source: S3Location, destination: S3Location) -> None:
    """Refuse a destination whose outputs or records the next listing would read as sources.

    Raises UsageError. A destination above the source is refused only where the output layout
    (destination prefix, then the whole source key) or the state folder leads back into it.
    """
    if source.bucket != destination.bucket:
        return
    outputs = destination.prefix + (escape_key(source.prefix[:-1]) + "/" if source.prefix else "")
    state = f"{destination.prefix}{STATE_FOLDER}/"
    written = (destination.prefix, outputs)
    if any(place.startswith(source.prefix) for place in written) or source.prefix.startswith(state):
        raise UsageError(
            f"destination {destination} writes into the source {source}: its outputs would be "
            "read as sources by the next run; choose a destination outside the source prefix"
        )
