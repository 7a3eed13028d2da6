"""What is remembered to tell a Grain's life: the last batches, as ranges, and how they ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, Report, RowsReport

REMEMBERED = 4096


@dataclass(slots=True)
class _Chapter:
    batch: int
    call: int
    worker: int
    ranges: tuple[EntityRange, ...]
    end: str = "in flight"

    def tells_of(self, microbatch: int, call: int, entity: int) -> bool:
        return call == self.call and any(
            number == microbatch and first <= entity < end for number, first, end in self.ranges
        )


class Story:
    """Owner of the memory of batches, bounded."""

    def __init__(self) -> None:
        self._chapters: deque[_Chapter] = deque(maxlen=REMEMBERED)
        self._open: dict[int, _Chapter] = {}

    def dispatched(
        self, batch: int, call: int, worker: int, ranges: tuple[EntityRange, ...]
    ) -> None:
        """A batch has left for a worker."""
        chapter = _Chapter(batch, call, worker, ranges)
        self._open[batch] = chapter
        self._chapters.append(chapter)

    def ended(self, batch: int, how: str) -> None:
        """A batch has come back, or its worker is gone."""
        self._open.pop(batch).end = how

    def of_batch(self, batch: int) -> str:
        """What is known of one batch."""
        for chapter in self._chapters:
            if chapter.batch == batch:
                return f"batch {batch} to worker {chapter.worker}: {chapter.end}"
        return f"batch {batch}: not remembered"

    def of_grain(self, microbatch: int, call: int, entity: int) -> list[str]:
        """The batches that a Grain was in, oldest first."""
        return [
            f"sent in batch {chapter.batch} to worker {chapter.worker}: {chapter.end}"
            for chapter in self._chapters
            if chapter.tells_of(microbatch, call, entity)
        ]


def in_words(report: Report) -> str:
    """What a report says, in few words."""
    match report:
        case RowsReport():
            failed = f", {len(report.failures)} failed" if report.failures else ""
            return f"reported {report.rows} rows{failed}"
        case AttemptFailed():
            return f"attempt failed ({report.type})"
        case ContractBreach():
            return f"broke the contract: expected {report.expected}, received {report.received}"
