"""What a store honours, found out by doing it on small objects of our own.

Nothing in this package relies on a feature that is missing here: answers are judged by what they
hold (ETag, size), not by the condition that was sent.
"""

from __future__ import annotations

import uuid
from base64 import b64encode
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.answers import (
    REFUSED_CONDITION,
    error_code,
    etag_of,
    expected,
    explained,
)
from rayorch_prefect.storage.client import CONNECT_TIMEOUT, new_client, s3_client
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.redaction import without_secrets
from rayorch_prefect.storage.state_folder import state_location

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONTENT = b"written by rayorch-prefect to see what this store honours; may be removed"
_METADATA = {"rayorch-probe": "kept"}
_OTHER_ETAG = f'"{"0" * 32}"'
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class StoreFeatures:
    """What one store does of what not every S3 server does; True only if it was seen.

    conditional_create  IfNoneMatch: a PUT to a key that exists is refused, to a new one taken
    conditional_update  IfMatch: a PUT over another ETag is refused, over the right one taken
    conditional_read    IfMatch: a GET with another ETag is refused, with the right one answered
    awkward_keys        a key with an empty segment (`a//b`) is taken and listed byte for byte
    metadata_case       names of metadata come back in the case they were sent
    checksums           a PUT whose content does not fit its SHA-256 checksum is refused

    `left` says what the probe could not remove again, and why; empty where nothing stayed.
    """

    endpoint: str
    conditional_create: bool
    conditional_update: bool
    conditional_read: bool
    awkward_keys: bool
    metadata_case: bool
    checksums: bool
    left: str = ""

    def describe(self) -> str:
        """One line for the log: the endpoint, what is honoured and what is not."""
        seen = {name: value for name, value in asdict(self).items() if isinstance(value, bool)}
        words = {name: name.replace("_", " ") for name in seen}
        honoured = ", ".join(words[name] for name, value in seen.items() if value)
        ignored = ", ".join(words[name] for name, value in seen.items() if not value)
        return (
            f"store {self.endpoint} honours: {honoured or 'nothing optional'}; "
            f"not honoured, so not relied on: {ignored or 'nothing'}"
        )


def probe(location: S3Location, timeout: float = 10.0) -> StoreFeatures:
    """See what the store of `location` honours, under `<location>_rayorch/probe/<random>/`.

    Some twenty small requests; what was written is removed again. A request is given up after
    `timeout` seconds and tried twice. Nothing else here removes objects, so a store that does not
    let us is no error: `left` names what stays. Raises StoreError, with what to do, if the store
    does not take, list and give back even a plain object; UsageError for AWS_* settings that make
    no client.
    """
    s3_client(location.access)  # so that errors can name the endpoint
    client = new_client(min(timeout, CONNECT_TIMEOUT), timeout, _ATTEMPTS, location.access)
    bench = _Bench(client, state_location(location, "probe", uuid.uuid4().hex))
    bench.write_plain()
    try:
        bench.check_plain()
        features = StoreFeatures(
            endpoint=without_secrets(client.meta.endpoint_url),
            conditional_create=bench.sees_conditional_create(),
            conditional_update=bench.sees_conditional_update(),
            conditional_read=bench.sees_conditional_read(),
            awkward_keys=bench.sees_awkward_keys(),
            metadata_case=bench.sees_metadata_case(),
            checksums=bench.sees_checksums(),
        )
    except StoreError:
        # The first refusal is the one to tell.
        with suppress(StoreError):
            bench.clear()
        raise
    return replace(features, left=bench.cleared())


@dataclass(frozen=True, slots=True)
class _Bench:
    """A folder of the store to try things in."""

    client: S3Client
    folder: S3Location

    def write_plain(self) -> None:
        uri = self._uri("plain")
        with explained("write", uri):
            written = self.client.put_object(**self._at("plain"), Body=_CONTENT, Metadata=_METADATA)
        etag_of(written, "write", uri)

    def check_plain(self) -> None:
        uri = self._uri("plain")
        with explained("read", uri):
            answer = self.client.get_object(**self._at("plain"))
            with closing(answer["Body"]) as body:
                content = body.read()
        if content != _CONTENT:
            raise StoreError(
                f"{uri} came back with {len(content)} other bytes than the {len(_CONTENT)} that "
                "were written: is AWS_ENDPOINT_URL the address of an S3 server, or does a proxy "
                "change bodies?"
            )

    def sees_conditional_create(self) -> bool:
        def create() -> str:
            return self._answer("create", "put", "new", Body=_CONTENT, IfNoneMatch="*")

        return create() == "" and create() in REFUSED_CONDITION

    def sees_conditional_update(self) -> bool:
        def update(etag: str) -> str:
            sent = {"Body": _CONTENT, "Metadata": _METADATA, "IfMatch": etag}
            return self._answer("update", "put", "plain", **sent)

        return update(_OTHER_ETAG) in REFUSED_CONDITION and update(self._etag_of_plain()) == ""

    def sees_conditional_read(self) -> bool:
        right = self._answer("read", "get", "plain", IfMatch=self._etag_of_plain())
        wrong = self._answer("read", "get", "plain", IfMatch=_OTHER_ETAG)
        return right == "" and wrong in REFUSED_CONDITION

    def sees_awkward_keys(self) -> bool:
        taken = self._answer("write", "put", "/double", Body=_CONTENT) == ""
        return taken and f"{self.folder.prefix}/double" in self._keys()

    def sees_metadata_case(self) -> bool:
        with explained("read", self._uri("plain")):
            head = self.client.head_object(**self._at("plain"))
        return _METADATA.items() <= head.get("Metadata", {}).items()

    def sees_checksums(self) -> bool:
        other = b64encode(sha256(b"something else").digest()).decode()
        return self._answer("write", "put", "sum", Body=_CONTENT, ChecksumSHA256=other) != ""

    def cleared(self) -> str:
        """Remove what was written; what stays and why, if it may not. Raises StoreError."""
        keys = self._keys()
        try:
            self._remove(keys)
        except StoreError as error:
            return (
                f"{len(keys)} small objects stay under {self.folder}, which may be removed: {error}"
            )
        return ""

    def clear(self) -> None:
        """Remove what was written. Raises StoreError."""
        self._remove(self._keys())

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            with explained("remove", self.folder.uri_of(key)):
                self.client.delete_object(Bucket=self.folder.bucket, Key=key)

    def _etag_of_plain(self) -> str:
        with explained("read", self._uri("plain")):
            return self.client.head_object(**self._at("plain"))["ETag"]

    def _answer(self, action: str, method: str, name: str, **fields: Any) -> str:
        """How the store answers: "" for yes, else its code. Raises StoreError for no answer."""
        with explained(action, self._uri(name)):
            try:
                if method == "put":
                    self.client.put_object(**self._at(name), **fields)
                else:
                    self.client.get_object(**self._at(name), **fields)["Body"].close()
            except ClientError as error:
                return error_code(error)
        return ""

    def _keys(self) -> list[str]:
        action, uri = "list", str(self.folder)
        with explained(action, uri):
            answer = self.client.list_objects_v2(
                Bucket=self.folder.bucket, Prefix=self.folder.prefix
            )
        expected(answer, "IsTruncated", action, uri)
        return [found.get("Key", "") for found in answer.get("Contents", [])]

    def _at(self, name: str) -> dict[str, Any]:
        return {"Bucket": self.folder.bucket, "Key": f"{self.folder.prefix}{name}"}

    def _uri(self, name: str) -> str:
        return self.folder.uri_of(f"{self.folder.prefix}{name}")
