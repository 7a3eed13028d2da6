"""What became of each source row of a night, and how that is written down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from rayorch_prefect.model.outcomes import Failure, Gap, Kind
from rayorch_prefect.storage import Artifact, LedgerEntry, ManifestRow, RowOutcome, Source

# Failures that the ledger gives back: their stage is only in the text.
REMEMBERED_STAGE = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One source row at the end of a night.

    `reason` says why it was not processed. `missing` holds its gaps as ordinal paths ("1",
    "3/2"). `remembered` says that the ledger gave the outcome and nothing ran, `left_out` that the
    user limited the run. `children` counts the Entities under the parent; times are Unix seconds,
    0 where nothing ran.
    """

    source: Source
    outcome: RowOutcome
    failure: Failure | None = None
    reason: str = ""
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[str, ...] = ()
    remembered: bool = False
    left_out: bool = False
    children: int = 0
    attempts: int = 0
    started: float = 0.0
    finished: float = 0.0

    @property
    def cause(self) -> str:
        """The failure in one line, empty if there is none."""
        return "" if self.failure is None else described(self.failure)

    def without_outputs(self, source: Source) -> Row:
        """The same to every count; the manifest has the rest.

        An uploader's row comes with a copy of its source: with `source` it has the night's.
        """
        return replace(self, source=source, artifacts=(), started=0.0, finished=0.0)

    def as_failed(self, failure: Failure, finished: float) -> Row:
        """The same row, failed: nothing of it counts as published."""
        return replace(
            self,
            outcome=RowOutcome.FAILED,
            failure=failure,
            artifacts=(),
            missing=(),
            finished=finished,
        )


def described(failure: Failure) -> str:
    """The failure in one line."""
    if failure.stage != REMEMBERED_STAGE:
        return str(failure)
    return f"{failure.named} before: {failure.message}"


def paths(gaps: tuple[Gap, ...]) -> tuple[str, ...]:
    """The gaps as ordinal paths: page 7 is "7", its region 2 is "7/2"."""
    return tuple("/".join(map(str, gap.path)) for gap in gaps)


def not_processed(source: Source, reason: str) -> Row:
    return Row(source, RowOutcome.NOT_PROCESSED, reason=reason)


def left_out(source: Source, limit: int) -> Row:
    """A source beyond the number that the user asked for: not processed, and no fault."""
    reason = f"left out by the run's limit of {limit}"
    return replace(not_processed(source, reason), left_out=True)


def row_of_entry(source: Source, entry: LedgerEntry) -> Row:
    """A source that the ledger already settles: skipped if published, else counted again."""
    published = entry.outcome is RowOutcome.PUBLISHED
    return Row(
        source=source,
        outcome=RowOutcome.SKIPPED if published else entry.outcome,
        failure=_remembered_failure(entry),
        artifacts=entry.artifacts,
        missing=entry.missing,
        remembered=True,
        children=entry.children,
        attempts=entry.attempts,
    )


def entry_of_row(row: Row, fingerprint: str) -> LedgerEntry:
    """What the ledger keeps of a row that is published, failed or dropped."""
    failure = row.failure
    return LedgerEntry(
        uri=row.source.uri,
        etag=row.source.etag,
        fingerprint=fingerprint,
        outcome=row.outcome,
        kind=failure.kind if failure else None,
        type=failure.type if failure else None,
        cause=_where_and_what(failure) if failure else None,
        artifacts=row.artifacts,
        children=row.children,
        missing=row.missing,
        attempts=row.attempts,
        version=row.source.version,
    )


def manifest_row(row: Row) -> ManifestRow:
    """The row as the manifest shows it."""
    return ManifestRow(
        uri=row.source.uri,
        etag=row.source.etag,
        size=row.source.size,
        row_outcome=row.outcome,
        kind=row.failure.kind.value if row.failure else None,
        type=row.failure.type if row.failure else None,
        cause=row.cause or None,
        output_keys=tuple(artifact.key for artifact in row.artifacts),
        sha256=tuple(artifact.sha256 for artifact in row.artifacts),
        children=row.children,
        missing=row.missing,
        attempts=row.attempts,
        started=_moment(row.started),
        finished=_moment(row.finished),
        reason=row.reason or None,
    )


def _remembered_failure(entry: LedgerEntry) -> Failure | None:
    if entry.kind is None:
        return None
    return Failure(
        kind=Kind(entry.kind),
        type=entry.type or "",
        message=entry.cause or "",
        stage=REMEMBERED_STAGE,
        domain="",
        attempts=entry.attempts,
    )


def _where_and_what(failure: Failure) -> str:
    where = "/".join(map(str, failure.path))
    return f"stage {failure.stage} at {failure.domain} {where}".strip() + f": {failure.message}"


def _moment(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
