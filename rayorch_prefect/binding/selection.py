"""Which sources a night runs: listed, narrowed, held against the ledger, limited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.rows import Row, left_out, row_of_entry
from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage import (
    LedgerEntry,
    RowOutcome,
    Source,
    list_sources,
    refuse_empty,
    standing,
    subtract,
)

_KEYS_NAMED = 5

Entries = Mapping[tuple[str, str], LedgerEntry]


class NoSources(UsageError):
    """There is no object under the source prefix; the message says what is there instead."""


class Standing(StrEnum):
    """What the ledger says of a source before the night.

    It has no entry of a source that failed in a way that is run again (AttemptsExhausted,
    UploadFailed, ContractError), so that is not told from one that never ran.
    """

    NEW = "new or again"
    CHANGED = "changed"
    PUBLISHED = "published before"
    FAILED = "failed before"
    DROPPED = "dropped before"


_STANDING = {
    RowOutcome.PUBLISHED: Standing.PUBLISHED,
    RowOutcome.FAILED: Standing.FAILED,
    RowOutcome.DROPPED: Standing.DROPPED,
}


@dataclass(frozen=True, slots=True)
class Chosen:
    """One source of the night; `row` is its end where it does not run, else None."""

    source: Source
    standing: Standing
    row: Row | None

    @property
    def intent(self) -> str:
        """What the night does with it: run, skip, count again or leave out."""
        if self.row is None:
            return "run"
        if self.row.left_out:
            return "leave out"
        return "skip" if self.row.outcome is RowOutcome.SKIPPED else "count again"


@dataclass(frozen=True, slots=True)
class Selection:
    """All sources of a night, in source order."""

    chosen: tuple[Chosen, ...]

    @property
    def to_run(self) -> list[int]:
        """The positions of the sources that run."""
        return [position for position, each in enumerate(self.chosen) if each.row is None]

    def counts(self) -> dict[str, int]:
        """How many sources there are, stand how, and are run, skipped, counted or left out."""
        standings = Counter(each.standing for each in self.chosen)
        intents = Counter(each.intent for each in self.chosen)
        return {
            "sources": len(self.chosen),
            **{standing.value: standings[standing] for standing in Standing},
            "to run": intents["run"],
            "skipped": intents["skip"],
            "counted again": intents["count again"],
            "left out": intents["leave out"],
        }

    def describe(self) -> str:
        """The counts that are not 0, in one line."""
        counts = self.counts()
        sources = counts.pop("sources")
        found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        return f"{sources} sources: {found}" if found else f"{sources} sources"


def select(order: Order, shelf: Shelf) -> Selection:
    """List the sources, subtract the ledger and the limit; only a run that owns the place writes.

    Raises NoSources for an empty prefix unless the order allows it, UsageError for a key of
    `only` that is not there, StoreError if the store refuses.
    """
    sources = _listed(order)
    # The ledger may be unreadable when it is to be ignored; a dry run shows what it holds.
    held = {} if order.force and not order.dry_run else shelf.entries()
    entries = standing(held)
    if not order.force:
        unknown = [source for source in sources if (source.uri, source.pin) not in entries]
        entries = {**entries, **shelf.found(unknown)}
    return _selected(order, sources, held, entries)


def looked_up(order: Order, held: Entries) -> Selection:
    """What `select` would say of the order if the ledger had the entries `held`; writes nothing.

    Raises as `select` does.
    """
    return _selected(order, _listed(order), held, standing(held))


def _selected(order: Order, sources: list[Source], held: Entries, entries: Entries) -> Selection:
    settled = _settled({} if order.force else entries, sources, order.retry_failed)
    known = {uri for uri, _ in (*held, *entries)}
    chosen = [
        Chosen(source, _standing(source, entries, known), settled.get(source.uri))
        for source in sources
    ]
    return Selection(tuple(_limited(chosen, order.limit)))


def _listed(order: Order) -> list[Source]:
    sources = list(list_sources(order.source))
    if not sources and not order.allow_empty:
        try:
            refuse_empty(order.source)
        except UsageError as error:
            raise NoSources(str(error)) from None
    return _narrowed(sources, order) if order.only else sources


def _narrowed(sources: list[Source], order: Order) -> list[Source]:
    wanted = set(order.only)
    found = [source for source in sources if source.key in wanted or source.uri in wanted]
    unknown = wanted - {source.key for source in found} - {source.uri for source in found}
    if unknown:
        named = ", ".join(repr(key) for key in sorted(unknown)[:_KEYS_NAMED])
        more = f" and {len(unknown) - _KEYS_NAMED} more" if len(unknown) > _KEYS_NAMED else ""
        raise UsageError(
            f"only: no source {named}{more} under {order.source}, which has {len(sources)}; "
            f"expected whole keys, such as {_example(sources, order)}, or s3:// URIs"
        )
    return found


def _example(sources: list[Source], order: Order) -> str:
    return repr(sources[0].key if sources else f"{order.source.prefix}name")


def _settled(entries: Entries, sources: list[Source], retry_failed: bool) -> dict[str, Row]:
    left = subtract(entries, sources, retry_failed)
    return {
        source.uri: row_of_entry(source, entry) for source, entry in (*left.skipped, *left.counted)
    }


def _standing(source: Source, entries: Entries, known: set[str]) -> Standing:
    entry = entries.get((source.uri, source.pin))
    if entry is not None:
        return _STANDING[entry.outcome]
    return Standing.CHANGED if source.uri in known else Standing.NEW


def _limited(chosen: Iterable[Chosen], limit: int | None) -> Iterable[Chosen]:
    taken = 0
    for each in chosen:
        if each.row is None and limit is not None:
            taken += 1
            if taken > limit:
                yield Chosen(each.source, each.standing, left_out(each.source, limit))
                continue
        yield each
