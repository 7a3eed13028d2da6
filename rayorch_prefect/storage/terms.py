"""How objects are written to one store: what it was seen to honour, and the size of parts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.probing import StoreFeatures

PART_BYTES_SETTING = "RAYORCH_PREFECT_PART_BYTES"
# What S3 allows of a part that is not the last.
_SMALLEST_PART, _LARGEST_PART = 5 * 1024**2, 5 * 1024**3
_PART_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Terms:
    """Small and picklable: it travels to whatever process uploads.

    conditional   a write replaces only what was seen there, and refuses what came in between
    checksums     the SHA-256 of the content goes along, for the store to check
    part_bytes    longer contents go in parts of this size
    open_uploads  where uploads in parts are noted while they are open, for `sweep_uploads`
    """

    conditional: bool = False
    checksums: bool = False
    part_bytes: int = _PART_BYTES
    open_uploads: S3Location | None = None

    @classmethod
    def of(
        cls, features: StoreFeatures, open_uploads: S3Location, part_bytes: int | None = None
    ) -> Terms:
        """What `features` allow; parts of `part_bytes`, or as RAYORCH_PREFECT_PART_BYTES says.

        Raises UsageError for a size that no store takes.
        """
        check_part_bytes(part_bytes)
        size = part_bytes or _part_bytes_set()
        return cls(features.conditional_create, features.checksums, size, open_uploads)


PLAIN = Terms()
"""For a store of which nothing was seen."""


def check_part_bytes(size: int | None) -> None:
    """Raises UsageError unless S3 takes parts of this size, or it is None."""
    if size is not None and not _SMALLEST_PART <= size <= _LARGEST_PART:
        raise UsageError(
            f"s3_part_bytes is {size}; expected bytes, {_SMALLEST_PART} to {_LARGEST_PART}"
        )


def _part_bytes_set() -> int:
    text = os.environ.get(PART_BYTES_SETTING) or str(_PART_BYTES)
    if not text.isdecimal() or not _SMALLEST_PART <= int(text) <= _LARGEST_PART:
        raise UsageError(
            f"{PART_BYTES_SETTING} is {text!r}; expected bytes, {_SMALLEST_PART} to {_LARGEST_PART}"
        )
    return int(text)
