"""What is remembered to tell a Grain's life: the last batches, as ranges, and how they ended; when
Grains became ready; and the tables of the microbatches that left last.

All of it is bounded, and costs a batch or a range something, never a Grain.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    Report,
    RowFailure,
    RowsReport,
)
from rayorch_prefect.scheduler.microbatch import Microbatch

REMEMBERED = 4096
"""Batches, and failures of single rows."""

READY_REMEMBERED = 8192
"""Ranges of Grains that became ready."""

ENTITIES_REMEMBERED = 100_000
"""Of microbatches that have left, together."""

LEFT_REMEMBERED = 64
"""Microbatches that have left."""

_NOTHING: Mapping[int, RowFailure] = {}


@dataclass(slots=True)
class Chapter:
    """A batch's life. `sent` and `ended` are numbers of events; `ended` 0 is in flight."""

    batch: int
    call: int
    worker: int
    ranges: tuple[EntityRange, ...]
    sent: int
    end: str = "in flight"
    ended: int = 0
    failures: Mapping[int, RowFailure] | None = field(default_factory=lambda: _NOTHING)
    """None: there were some, and they are no longer remembered."""
    skipped: tuple[int, ...] = ()

    def row_of(self, microbatch: int, call: int, entity: int) -> int | None:
        """The Grain's row in the batch; None if it was not in it."""
        if call != self.call:
            return None
        row = 0
        for number, first, end in self.ranges:
            if number == microbatch and first <= entity < end:
                return row + entity - first
            row += end - first
        return None

    @property
    def rows(self) -> int:
        """How many Grains it had."""
        return sum(end - first for _, first, end in self.ranges)


class Story:
    """Owner of the memory of what happened. `now` is the number of the current event, from 1;
    refused ones do not count."""

    def __init__(self) -> None:
        self.now = 1
        self.left: deque[Microbatch] = deque()
        self._chapters: deque[Chapter] = deque(maxlen=REMEMBERED)
        self._open: dict[int, Chapter] = {}
        self._ready: deque[tuple[int, int, int, int, int]] = deque(maxlen=READY_REMEMBERED)
        self._with_failures: deque[Chapter] = deque()
        self._failures = 0
        self._entities_left = 0

    def ready(self, call: int, microbatch: int, first: int, end: int) -> None:
        """Grains have become READY for the first time."""
        self._ready.append((self.now, call, microbatch, first, end))

    def dispatched(
        self, batch: int, call: int, worker: int, ranges: tuple[EntityRange, ...]
    ) -> None:
        """A batch has left for a worker."""
        chapter = Chapter(batch, call, worker, ranges, self.now)
        self._open[batch] = chapter
        self._chapters.append(chapter)

    def ended(self, batch: int, how: str, report: Report | None = None) -> None:
        """A batch has come back, or its worker is gone."""
        chapter = self._open.pop(batch)
        chapter.end, chapter.ended = how, self.now
        if isinstance(report, RowsReport) and (report.failures or report.skipped):
            chapter.failures, chapter.skipped = report.failures, report.skipped
            self._with_failures.append(chapter)
            self._failures += len(report.failures) + len(report.skipped)
            while self._failures > REMEMBERED and len(self._with_failures) > 1:
                self._shorten(self._with_failures.popleft())

    def _shorten(self, chapter: Chapter) -> None:
        self._failures -= len(chapter.failures or ()) + len(chapter.skipped)
        chapter.failures, chapter.skipped = None, ()

    def microbatch_left(self, microbatch: Microbatch) -> None:
        """A microbatch has ended or was abandoned; its values are gone already."""
        self.left.append(microbatch)
        self._entities_left += _entities(microbatch)
        while self._entities_left > ENTITIES_REMEMBERED or len(self.left) > LEFT_REMEMBERED:
            self._entities_left -= _entities(self.left.popleft())

    def chapter(self, batch: int) -> Chapter | None:
        """What is remembered of one batch."""
        latest_first = (chapter for chapter in reversed(self._chapters) if chapter.batch == batch)
        return self._open.get(batch) or next(latest_first, None)

    def of_batch(self, batch: int) -> str:
        """What is known of one batch."""
        chapter = self.chapter(batch)
        if chapter is None:
            return f"batch {batch}: not remembered"
        return f"batch {batch} to worker {chapter.worker}: {chapter.end}"

    def ready_at(self, microbatch: int, call: int, entity: int) -> int | None:
        """The event that made a Grain ready; None if that is not remembered, or has not been."""
        for event, *of, first, end in self._ready:
            if of == [call, microbatch] and first <= entity < end:
                return event
        return None

    def of_grain(self, microbatch: int, call: int, entity: int) -> Iterator[tuple[Chapter, int]]:
        """The batches that a Grain was in, oldest first, and its row in each."""
        for chapter in self._chapters:
            row = chapter.row_of(microbatch, call, entity)
            if row is not None:
                yield chapter, row


def _entities(microbatch: Microbatch) -> int:
    return sum(microbatch.lineage.count)


def in_words(report: Report) -> str:
    """What a report says of the whole batch."""
    match report:
        case RowsReport():
            failed = f", {len(report.failures)} failed" if report.failures else ""
            return f"reported {report.rows} rows{failed}"
        case AttemptFailed():
            return f"attempt failed ({report.type}: {report.message})"
        case ContractBreach():
            return f"broke the contract: expected {report.expected}, received {report.received}"
