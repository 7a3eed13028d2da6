"""What the scheduler has counted; read by metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CallCounts:
    """Of one Call, over all microbatches. `rows` were sent in `batches`; `grains` committed.
    `doomed` of those `suppressed` are so since their parent could not be COMPLETED any more."""

    grains: int = 0
    batches: int = 0
    rows: int = 0
    failed: int = 0
    suppressed: int = 0
    doomed: int = 0
    ready: int = 0
    in_flight: int = 0


class Counts:
    """Owner of the counters.

    `retries` counts Grains tried again, `stale_reports` whole reports that came too late,
    `dropped_rows` rows that were computed for a barred Grain or one that no longer matters.
    """

    def __init__(self, calls: int) -> None:
        self.calls = [CallCounts() for _ in range(calls)]
        self.retries = 0
        self.stale_reports = 0
        self.dropped_rows = 0
        self.workers_lost = 0
        self.deadlines_passed = 0
        self.workers_recycled = 0
        self.contract_errors = 0

    def suppressed(self, call: int, n: int, ready: int, doomed: int) -> None:
        """Grains of a Call were suppressed, `ready` of them READY, `doomed` with their parent."""
        counts = self.calls[call]
        counts.ready -= ready
        counts.suppressed += n
        counts.doomed += doomed
