"""One simulated batch: whose rows it has, what they cost, what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rayorch_prefect.model.events import Bar, DispatchBatch
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import RowFailure
from rayorch_prefect.simulation.chain import Level, Stage
from rayorch_prefect.simulation.prices import Prices

GROUP_POISON = RowFailure(Kind.GROUP_FAILURE, "Poison", "this page spoils its document")
ROOT_POISON = RowFailure(Kind.RECORD_FAILURE, "Poison", "a page of this document spoils it")


class Segment(NamedTuple):
    """Rows `row..row+n-1` of a batch, all of one group. Of a page stage these are the document's
    pages `first..first+n-1`; else it is one row with `pages` below it, from page `first` on."""

    document: int
    first: int
    n: int
    pages: int
    row: int
    bar: Bar | None


@dataclass(slots=True)
class Batch:
    """`end` is when it is done if nothing more is barred; `rows` are computed (pages of a whole
    document), by `calls`; `sizes` is the number of children of each row that has a value."""

    sent: DispatchBatch
    segments: list[Segment]
    begun: float = 0.0
    end: float = 0.0
    calls: int = 0
    rows: int = 0
    lost: int = 0
    skipped: list[int] = field(default_factory=list[int])
    failures: dict[int, RowFailure] = field(default_factory=dict[int, RowFailure])
    version: int = 0


@dataclass(frozen=True, slots=True)
class Bench:
    """What one stage does with a batch. `poison` is empty but at the stage where pages fail."""

    stage: Stage
    prices: Prices
    poison: Mapping[int, int]

    def work(self, batch: Batch, known: Mapping[Bar, float]) -> None:
        """(Re)compute the batch from its begin, with the bars known and since when."""
        batch.skipped, batch.failures = [], {}
        batch.calls = batch.rows = batch.lost = 0
        if self.stage.rowwise and self.stage.level is Level.PAGE:
            self._row_by_row(batch, dict(known))
        else:
            self._at_once(batch, known)

    def _at_once(self, batch: Batch, known: Mapping[Bar, float]) -> None:
        seconds = 0.0
        on_pages = self.stage.level is Level.PAGE
        for segment in batch.segments:
            if known and segment.bar is not None and known.get(segment.bar, _NEVER) <= batch.begun:
                batch.skipped.extend(range(segment.row, segment.row + segment.n))
            elif on_pages:
                seconds += self._pages(batch, segment)
            else:
                seconds += self._row(batch, segment)
        if batch.rows and not self.stage.whole:
            batch.calls = 1
            seconds += self.stage.call_s
        batch.end = batch.begun + seconds

    def _pages(self, batch: Batch, segment: Segment) -> float:
        document, first, n, _, row, _ = segment
        batch.rows += n
        if self.poison:
            bad = self.poison.get(document, -1)
            batch.lost += n if bad >= 0 else 0
            if first <= bad < first + n:
                batch.failures[row + bad - first] = GROUP_POISON
        return self.prices.of_pages(document, first, first + n)

    def _row(self, batch: Batch, segment: Segment) -> float:
        document, _, _, pages, row, _ = segment
        if not self.stage.whole:
            batch.rows += 1
            return self.prices.of_row(document, pages)
        bad = self.poison.get(document, -1)
        if bad >= 0:
            # It gives up after the call that has the poisonous page.
            pages = min(pages, (bad // self.stage.batch + 1) * self.stage.batch)
            batch.failures[row] = ROOT_POISON
            batch.lost += pages
        batch.rows += pages
        batch.calls += -(-pages // self.stage.batch)
        return self.prices.of_whole(document, pages)

    def _row_by_row(self, batch: Batch, known: dict[Bar, float]) -> None:
        """A row whose group is barred by the time it would start is skipped."""
        at = batch.begun + self.stage.call_s
        batch.calls = 1
        for document, first, n, _, row, bar in batch.segments:
            bad = self.poison.get(document, -1)
            for page in range(first, first + n):
                if bar is not None and known.get(bar, _NEVER) <= at:
                    batch.skipped.append(row + page - first)
                    continue
                at += self.prices.of_pages(document, page, page + 1)
                batch.rows += 1
                batch.lost += bad >= 0
                if page == bad:
                    batch.failures[row + page - first] = GROUP_POISON
                    if bar is not None:
                        known[bar] = at
        batch.end = at


_NEVER = float("inf")
