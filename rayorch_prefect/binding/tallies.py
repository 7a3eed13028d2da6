"""Counts of row outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rayorch_prefect.binding.rows import Row
from rayorch_prefect.errors import InternalError
from rayorch_prefect.execution.plain_text import writable
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import RowOutcome

CAUSES_SHOWN = 3
"""How many causes a state's message spells out; the table artifact has the rest."""

_CAUSE_LENGTH = 300
_KEY_LENGTH = 120
_REASON_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of row outcomes.

    `left_out` counts those of the not processed rows that the user's own limit left out,
    `with_gaps` the published and skipped rows with gaps, `remembered` the failed rows
    that were not run again, `dropped_before` the dropped ones, `children` the Entities under the
    published rows. `causes` holds some causes of failed rows, the first of each kind and type
    before any second one, and the gravest kind first; `reasons` why rows were not processed.
    """

    published: int = 0
    failed: int = 0
    dropped: int = 0
    skipped: int = 0
    not_processed: int = 0
    left_out: int = 0
    with_gaps: int = 0
    remembered: int = 0
    dropped_before: int = 0
    children: int = 0
    by_kind: Mapping[Kind, int] = field(default_factory=dict)
    by_type: Mapping[str, int] = field(default_factory=dict)
    causes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return self.published + self.failed + self.dropped + self.skipped + self.not_processed

    @property
    def counted_again(self) -> int:
        """The rows that the ledger settles as failed or dropped: they did not run."""
        return self.remembered + self.dropped_before

    @property
    def broken_off(self) -> int:
        """The rows that were not processed although they should have been."""
        return self.not_processed - self.left_out

    @property
    def through(self) -> int:
        """The rows that a run is through with: it need not look at them any more."""
        return self.total - self.broken_off

    @property
    def gravest(self) -> Kind | None:
        """The gravest kind among the failed rows."""
        return min(self.by_kind, key=lambda kind: kind.gravity, default=None)

    def __str__(self) -> str:
        gaps = f" ({self.with_gaps} with gaps)" if self.with_gaps else ""
        return (
            f"{self.total} sources: {self.published} published, {self.failed} failed, "
            f"{self.dropped} dropped, {self.skipped} skipped, "
            f"{self.not_processed} not processed{gaps}"
        )


def tally(rows: Iterable[Row]) -> Tally:
    """Count the rows, in their order."""
    counted = list(rows)
    outcomes = Counter(row.outcome for row in counted)
    failed = [row for row in counted if row.failure is not None]
    return Tally(
        published=outcomes[RowOutcome.PUBLISHED],
        failed=outcomes[RowOutcome.FAILED],
        dropped=outcomes[RowOutcome.DROPPED],
        skipped=outcomes[RowOutcome.SKIPPED],
        not_processed=outcomes[RowOutcome.NOT_PROCESSED],
        left_out=sum(row.left_out for row in counted),
        with_gaps=sum(bool(row.missing) for row in counted),
        remembered=sum(row.remembered for row in failed),
        dropped_before=sum(row.remembered for row in counted if row.outcome is RowOutcome.DROPPED),
        children=sum(row.children for row in counted if row.outcome is RowOutcome.PUBLISHED),
        by_kind=dict(Counter(row.failure.kind for row in failed if row.failure)),
        by_type=dict(Counter(row.failure.type for row in failed if row.failure)),
        causes=tuple(_shown(row) for row in _telling(failed)[:CAUSES_SHOWN]),
        reasons=tuple(dict.fromkeys(row.reason for row in counted if row.reason)),
    )


def first_reasons(reasons: Sequence[str]) -> list[str]:
    """The first reasons, and how many more there are: each microbatch may have one of its own."""
    more = len(reasons) - CAUSES_SHOWN
    shown = [_cut(reason, _REASON_LENGTH) for reason in reasons[:CAUSES_SHOWN]]
    return [*shown, f"{more} more reasons, in the manifest"] if more > 0 else shown


def check_total(counts: Tally, sources: int, where: str) -> None:
    """Raise InternalError unless the row outcomes add up to the sources."""
    if counts.total != sources:
        raise InternalError(
            f"{where}: the row outcomes add up to {counts.total}, the sources to {sources} "
            f"({counts}); please report it"
        )


def _telling(failed: list[Row]) -> list[Row]:
    """Failed rows in the order in which their causes tell most; otherwise in their own."""
    seen: Counter[tuple[Kind, str]] = Counter()
    ranked: list[tuple[tuple[int, int], Row]] = []
    for row in failed:
        assert row.failure is not None
        alike = row.failure.kind, row.failure.type
        ranked.append(((seen[alike], row.failure.kind.gravity), row))
        seen[alike] += 1
    return [row for _, row in sorted(ranked, key=lambda each: each[0])]


def _shown(row: Row) -> str:
    key = writable(row.source.key)
    # Keys differ at their ends, and a long one must leave room for the cause.
    named = key if len(key) <= _KEY_LENGTH else "…" + key[1 - _KEY_LENGTH :]
    return _cut(f"{named}: {row.cause}", _CAUSE_LENGTH)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
