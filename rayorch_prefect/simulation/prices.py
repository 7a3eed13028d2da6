"""What a row costs: the same for one row under every policy and in every batch."""

from __future__ import annotations

import random
from itertools import accumulate

from rayorch_prefect.simulation.chain import Level, Stage
from rayorch_prefect.simulation.load import Load


class Prices:
    """Seconds of one stage's rows, without what a call costs."""

    def __init__(self, stage: Stage, load: Load, seed: int = 0) -> None:
        self._stage = stage
        self._counts = load.counts
        self._by_page = stage.level is Level.PAGE or stage.whole
        self._before = list(accumulate(load.counts, initial=0))
        self._varied: list[float] | None = None
        if stage.row_s and (stage.sigma or stage.tail_share):
            rows = load.pages if self._by_page else len(load.counts)
            self._varied = list(accumulate(self._drawn(rows, seed), initial=0.0))

    def _drawn(self, rows: int, seed: int) -> list[float]:
        stage, pick = self._stage, random.Random(f"{self._stage.name}/{seed}")
        share, sigma = stage.tail_share, stage.sigma
        mean = -sigma * sigma / 2
        drawn: list[float] = []
        for _ in range(rows):
            factor = pick.lognormvariate(mean, sigma) if sigma else 1.0
            late = share and pick.random() < share
            drawn.append(stage.row_s * factor * (stage.tail_factor if late else 1.0))
        return drawn

    def of_pages(self, document: int, first: int, end: int) -> float:
        """Pages `first..end-1` of a document, as rows."""
        if self._varied is None:
            return self._stage.row_s * (end - first)
        start = self._before[document]
        return self._varied[start + end] - self._varied[start + first]

    def of_row(self, document: int, pages: int) -> float:
        """One row that is a document or a range, with so many pages below it."""
        own = self._stage.row_s
        if self._varied is not None:
            own = self._varied[document + 1] - self._varied[document]
        return own + self._stage.child_s * pages

    def of_whole(self, document: int, pages: int) -> float:
        """The first `pages` pages of a document that one call after another reads, the calls' cost
        included."""
        calls = -(-pages // self._stage.batch)
        own = self._stage.call_s * calls + self.of_pages(document, 0, pages)
        return own + self._stage.child_s * pages
