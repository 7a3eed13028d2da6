"""What became of a source row at the end of a run."""

from __future__ import annotations

from enum import StrEnum


class RowOutcome(StrEnum):
    """Each source row has exactly one; they add up to the sources."""

    PUBLISHED = "published"
    FAILED = "failed"
    DROPPED = "dropped"
    SKIPPED = "skipped"
    NOT_PROCESSED = "not_processed"
