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


class RowStage(StrEnum):
    """Where a source row is that has no outcome yet."""

    LISTED = "listed"
    RUNS = "runs"
    WHOLE = "whole"


MOVES: dict[tuple[RowStage, RowStage | RowOutcome], str] = {
    (RowStage.LISTED, RowOutcome.SKIPPED): "the ledger has it as published",
    (RowStage.LISTED, RowOutcome.FAILED): "the ledger has it as failed for good",
    (RowStage.LISTED, RowOutcome.DROPPED): "the ledger has it as dropped",
    (RowStage.LISTED, RowOutcome.NOT_PROCESSED): "left out by a limit, or the run ended before",
    (RowStage.LISTED, RowStage.RUNS): "its microbatch begins",
    (RowStage.RUNS, RowStage.WHOLE): "its parent is COMPLETED",
    (RowStage.RUNS, RowOutcome.FAILED): "its parent is FAILED",
    (RowStage.RUNS, RowOutcome.DROPPED): "its parent is DROPPED",
    (RowStage.RUNS, RowOutcome.NOT_PROCESSED): "the run ended before its parent did",
    (RowStage.WHOLE, RowOutcome.PUBLISHED): "all its outputs are stored",
    (RowStage.WHOLE, RowOutcome.FAILED): "its upload failed for good",
    (RowStage.WHOLE, RowOutcome.NOT_PROCESSED): "the run ended before its upload did",
}
"""What moves a source row in one run; it has its outcome once."""
