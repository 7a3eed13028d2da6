"""The published output of one parent: encoded, stored, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rayorch_prefect.storage.encoding import encode
from rayorch_prefect.storage.keys import output_key
from rayorch_prefect.storage.ledger import LedgerEntry
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import Artifact, put_object
from rayorch_prefect.storage.stamps import stamp_of
from rayorch_prefect.storage.terms import PLAIN, Terms


@dataclass(frozen=True, slots=True)
class Published:
    """What one parent left in the store, in the order of its suffixes."""

    artifacts: tuple[Artifact, ...]

    @property
    def size(self) -> int:
        """Bytes over all artifacts."""
        return sum(artifact.size for artifact in self.artifacts)


def publish(
    value: object,
    destination: S3Location,
    source_key: str,
    terms: Terms = PLAIN,
    entry: LedgerEntry | None = None,
) -> Published:
    """Store a parent's published output under its keys in `destination`.

    The last artifact says what `entry`, which is to be recorded next, will say.

    All artifacts are encoded and named before the first is stored, so a value that cannot be
    published leaves nothing behind. Storing again replaces: same parent, same keys.

    Raises ProgramError for a value or suffix that is not allowed, UsageError for a destination
    prefix that is too long, StoreError if the store refuses or stores something else.
    """
    outputs = encode(value)
    keys = [output_key(destination.prefix, source_key, suffix) for suffix, _, _ in outputs]
    stamps: list[Mapping[str, str]] = [{} for _ in outputs]
    if entry is not None:
        stamps[-1] = stamp_of(entry, outputs)
    return Published(
        tuple(
            put_object(destination, key, content, content_type, terms, stamp)
            for key, (_, content, content_type), stamp in zip(keys, outputs, stamps, strict=True)
        )
    )
