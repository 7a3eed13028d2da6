"""The numbers of a night, for people and for a summary file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.execution.metrics import CallMetrics, EngineMetrics


@dataclass(frozen=True, slots=True)
class NightSummary:
    """Counts and times of one night.

    `failed` counts by the program's type, `failed_by_kind` by kind; `children` counts the
    Entities under the published parents (of documents: pages). `first_upload_s` (None if
    nothing was uploaded) and `wall_s` are seconds from the start of the flow's body.
    `task_runs_missing` counts those that Prefect has no record of after its server was away
    (None: it does not say). `workers_lost` counts processes that died under a stage or an upload,
    `rows_again` rows sent to a stage once more (after failed attempts, too, or because a lost
    value was needed again), `uploads_again` uploads begun once more as their process died.
    `calls` says what each stage did and took.
    """

    sources: int
    published: int
    failed: Mapping[str, int]
    failed_by_kind: Mapping[str, int]
    dropped: int
    skipped: int
    not_processed: int
    with_gaps: int
    children: int
    flow_runs: int
    upload_task_runs: int
    first_upload_s: float | None
    wall_s: float
    manifest: str
    task_runs_missing: int | None = 0
    workers_lost: int = 0
    rows_again: int = 0
    uploads_again: int = 0
    calls: tuple[CallMetrics, ...] = ()

    def as_json(self) -> str:
        """All of it as a JSON object, for a file."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of(cls, counts: Tally, metrics: EngineMetrics | None, **measured: Any) -> NightSummary:
        """The summary of these counts, of the Engine's, and of what was measured beside them."""
        if metrics is not None:
            measured["workers_lost"] = metrics.workers_lost + metrics.appliers_lost
            measured["rows_again"] = metrics.retries + metrics.remade_rows
            measured["uploads_again"] = metrics.applied_again
            measured["calls"] = metrics.calls
        return cls(
            sources=counts.total,
            published=counts.published,
            failed=dict(counts.by_type),
            failed_by_kind={kind.value: count for kind, count in counts.by_kind.items()},
            dropped=counts.dropped,
            skipped=counts.skipped,
            not_processed=counts.not_processed,
            with_gaps=counts.with_gaps,
            children=counts.children,
            **measured,
        )
