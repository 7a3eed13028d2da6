"""What an output says of its parent: enough for the ledger entry that a dying run did not store.

Outputs come first and the entry last. A run that is killed in between leaves a parent that is
published and not recorded. So the last of a parent's artifacts carries a *stamp* among its
metadata: which source and fingerprint it is of, and the hashes of all artifacts. The run that
follows a dead one looks for such outputs and records them, instead of computing them again.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256
from typing import Any

from botocore.exceptions import ClientError

from rayorch_prefect.storage.answers import NOT_THERE, error_code, etag_of, explained
from rayorch_prefect.storage.client import MAX_CONNECTIONS, s3_client
from rayorch_prefect.storage.encoding import Encoded
from rayorch_prefect.storage.keys import STATE_FOLDER, output_key
from rayorch_prefect.storage.ledger import LedgerEntry
from rayorch_prefect.storage.listing import list_modified
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import Artifact
from rayorch_prefect.storage.row_outcomes import RowOutcome
from rayorch_prefect.storage.source import Source

STAMP = "rayorch-entry"

# Stores take 2 kB of metadata in all.
_MOST_BYTES = 1500


def stamp_of(entry: LedgerEntry, outputs: Sequence[Encoded]) -> Mapping[str, str]:
    """The metadata of the last of these outputs; none where they say more than metadata can."""
    text = json.dumps(
        {
            "id": entry.identity,
            "children": entry.children,
            "missing": entry.missing,
            "attempts": entry.attempts,
            "outputs": [[suffix, sha256(content).hexdigest()] for suffix, content, _ in outputs],
        },
        separators=(",", ":"),
    )
    return {STAMP: text} if len(text) <= _MOST_BYTES else {}


def find_published(
    destination: S3Location, sources: Iterable[Source], fingerprint: str, since: datetime
) -> list[LedgerEntry]:
    """Entries of those sources whose outputs, written since then, are all there and say so.

    One listing of the destination, and a request an output that may be meant. Raises StoreError.
    """
    state = f"{destination.prefix}{STATE_FOLDER}/"
    keys = sorted(key for key in list_modified(destination, since) if not key.startswith(state))
    asked = [(source, _outputs_of(source, keys, destination)) for source in sources]
    meant = [(source, found) for source, found in asked if found]
    with ThreadPoolExecutor(min(16, MAX_CONNECTIONS), "stamps") as pool:
        entries = pool.map(lambda each: _entry(destination, fingerprint, *each), meant)
        return [entry for entry in entries if entry is not None]


def _outputs_of(source: Source, keys: Sequence[str], destination: S3Location) -> list[str]:
    """The keys of `keys`, which are sorted, that may be the source's outputs."""
    start = output_key(destination.prefix, source.key, ".x").removesuffix("x")
    marked = output_key(destination.prefix, source.key, ".x.x").removesuffix("x.x")
    return [*_beginning(keys, start), *_beginning(keys, marked)]


def _beginning(keys: Sequence[str], start: str) -> Iterator[str]:
    for place in range(bisect_left(keys, start), len(keys)):
        if not keys[place].startswith(start):
            return
        yield keys[place]


def _entry(
    destination: S3Location, fingerprint: str, source: Source, keys: Sequence[str]
) -> LedgerEntry | None:
    bare = LedgerEntry(
        source.uri, source.etag, fingerprint, RowOutcome.PUBLISHED, version=source.version
    )
    stamps = (_stamp(_metadata(_head(destination, key))) for key in keys)
    stamp = next((each for each in stamps if each.get("id") == bare.identity), None)
    if stamp is None:
        return None
    artifacts = [
        _artifact(destination, output_key(destination.prefix, source.key, suffix), digest)
        for suffix, digest in stamp["outputs"]
    ]
    if None in artifacts:
        return None
    plain = {name: stamp[name] for name in ("children", "attempts")}
    return LedgerEntry(
        source.uri,
        source.etag,
        fingerprint,
        RowOutcome.PUBLISHED,
        artifacts=tuple(each for each in artifacts if each is not None),
        missing=tuple(stamp["missing"]),
        version=source.version,
        **plain,
    )


def _artifact(destination: S3Location, key: str, digest: str) -> Artifact | None:
    head = _head(destination, key)
    if head is None or _metadata(head).get("sha256") != digest:
        return None
    uri = destination.uri_of(key)
    return Artifact(key, uri, int(head["ContentLength"]), digest, etag_of(head, "read", uri))


def _head(destination: S3Location, key: str) -> Mapping[str, Any] | None:
    with explained("read", destination.uri_of(key)):
        try:
            return s3_client(destination.access).head_object(Bucket=destination.bucket, Key=key)
        except ClientError as error:
            if error_code(error) in NOT_THERE:
                return None
            raise


def _metadata(head: Mapping[str, Any] | None) -> Mapping[str, str]:
    """By lower case names: some stores change their case."""
    found = (head or {}).get("Metadata", {})
    return {name.lower(): text for name, text in found.items()}


def _stamp(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        stamp = json.loads(metadata.get(STAMP, "{}"))
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}
