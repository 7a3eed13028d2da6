"""The numbers of a night, and what a night would do, as plain lines."""

from __future__ import annotations

from collections.abc import Sequence

from rayorch_prefect.binding.selection import Selection
from rayorch_prefect.binding.summaries import NightSummary


def summary_lines(summary: NightSummary) -> list[str]:
    """One `label  value` line each: row outcomes, failures by type, times, manifest."""
    first = summary.first_upload_s
    cells: list[tuple[str, object]] = [
        ("sources", summary.sources),
        ("published", summary.published),
        ("  with gaps", summary.with_gaps),
        ("failed", sum(summary.failed.values())),
        *((f"  {name}", count) for name, count in sorted(summary.failed.items())),
        ("dropped", summary.dropped),
        ("skipped", summary.skipped),
        ("not processed", summary.not_processed),
        ("children", summary.children),
        *_losses(summary),
        ("first upload", "none" if first is None else f"{first:.1f} s"),
        ("wall", f"{summary.wall_s:.1f} s"),
        ("manifest", summary.manifest),
        *_missing(summary.task_runs_missing),
    ]
    return aligned(cells)


def aligned(cells: Sequence[tuple[str, object]]) -> list[str]:
    """One `label  value` line each, the values below each other."""
    width = max(len(label) for label, _ in cells)
    return [f"{label:<{width}}  {value}" for label, value in cells]


def _missing(task_runs: int | None) -> list[tuple[str, object]]:
    return [("not at Prefect", f"{task_runs or 'unknown'} task runs")] if task_runs != 0 else []


def _losses(summary: NightSummary) -> list[tuple[str, object]]:
    if not summary.workers_lost:
        return []
    again = [("rows", summary.rows_again), ("uploads", summary.uploads_again)]
    done = ", ".join(f"{count} {what}" for what, count in again if count) or "nothing"
    return [("workers lost", f"{summary.workers_lost}; done again: {done}")]


def selection_lines(selection: Selection) -> list[str]:
    """One `intent  standing  source key` line each, then the counts."""
    lines = [
        f"{each.intent:<12} {each.standing:<17} {each.source.key}" for each in selection.chosen
    ]
    return [*lines, f"dry run, nothing was started. {selection.describe()}"]
