"""How a destination stands: what its ledger holds, and what that leaves of the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rayorch_prefect.binding.selection import Entries, Selection
from rayorch_prefect.storage import LedgerEntry, RowOutcome


@dataclass(frozen=True, slots=True)
class DestinationStanding:
    """How each source ended last, by its URI.

    `last` is the last entry of each source; `not_there` counts sources of the ledger that are not
    among those looked at, and are not in `last`. `selection` is what a night would do with the
    sources, None if they were not looked at.
    """

    last: Mapping[str, LedgerEntry]
    selection: Selection | None = None
    not_there: int = 0

    @property
    def failed(self) -> list[LedgerEntry]:
        """The last entries that are failures, by URI."""
        failed = (each for each in self.last.values() if each.outcome is RowOutcome.FAILED)
        return sorted(failed, key=lambda entry: entry.uri)

    @property
    def left(self) -> list[tuple[str, str]]:
        """(source key, what the ledger says of it) of each source that the next night runs."""
        if self.selection is None:
            return []
        return [(each.source.key, each.standing) for each in self.selection.chosen if not each.row]

    @property
    def is_good(self) -> bool:
        """Whether nothing has failed and nothing is left."""
        return not self.failed and not self.left

    def count(self, outcome: RowOutcome) -> int:
        """How many sources ended so last."""
        return sum(entry.outcome is outcome for entry in self.last.values())

    @property
    def with_gaps(self) -> int:
        return sum(bool(entry.missing) for entry in self.last.values())

    def failed_by_kind(self) -> dict[str, int]:
        """How many failed by which kind, gravest first."""
        kinds = Counter(entry.kind for entry in self.failed if entry.kind)
        return {kind.value: kinds[kind] for kind in sorted(kinds, key=lambda kind: kind.gravity)}

    def failed_by_type(self) -> dict[str, int]:
        """How many failed by which of the program's types, by name."""
        return dict(sorted(Counter(entry.type or "" for entry in self.failed).items()))


def standing_of(held: Entries, selection: Selection | None = None) -> DestinationStanding:
    """The standing by all entries of a ledger and, if they were looked at, the sources."""
    last = _last(held.values())
    if selection is None:
        return DestinationStanding(last)
    there = {each.source.uri for each in selection.chosen}
    kept = {uri: entry for uri, entry in last.items() if uri in there}
    return DestinationStanding(kept, selection, len(last) - len(kept))


def _last(entries: Iterable[LedgerEntry]) -> dict[str, LedgerEntry]:
    last: dict[str, LedgerEntry] = {}
    for entry in entries:
        known = last.get(entry.uri)
        if known is None or known.finished <= entry.finished:
            last[entry.uri] = entry
    return last
