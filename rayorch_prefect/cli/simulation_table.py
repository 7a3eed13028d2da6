"""What `simulate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rayorch_prefect.simulation.figures import Figures
from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.simulate import Shape, Simulated
from rayorch_prefect.simulation.timeline import shown

_HEAD = ("shape", "policy", "wall", "x first", "busiest stage", "fill", "tail", "first out")
# A shorter tail than this share of the wall is not worth a move.
_WORTH = 0.02


def described(load: Load) -> str:
    """The load in one line."""
    counts = load.counts
    line = f"{len(counts):,} documents, {load.pages:,} pages (longest {max(counts):,})"
    if load.poison:
        line += f"; {len(load.poison):,} poisoned, {load.siblings:,} siblings"
    return line


def table_lines(runs: Sequence[Simulated]) -> list[str]:
    """One line a run, under a head."""
    poisoned = any(run.figures.failed for run in runs)
    head = [*_HEAD, "never computed"] if poisoned else list(_HEAD)
    first = runs[0].figures
    return aligned([head, *(_cells(run.figures, first, poisoned) for run in runs)])


def _cells(figures: Figures, first: Figures, poisoned: bool) -> list[str]:
    busiest = figures.busiest
    cells = [
        figures.shape,
        figures.policy,
        shown(figures.wall_s),
        f"{figures.wall_s / first.wall_s:.3f}" if first.wall_s else "-",
        f"{busiest.stage} {busiest.utilisation:.1%}",
        f"{busiest.fill:.1%}",
        f"{shown(figures.tail_s)} ({_share(figures):.1%})",
        shown(figures.first_parent_s),
    ]
    if poisoned:
        cells.append(f"{figures.suppressed:,} ({figures.suppressed_share:.1%})")
    return cells


def _share(figures: Figures) -> float:
    return figures.tail_s / figures.wall_s if figures.wall_s else 0.0


def answers(runs: Sequence[Simulated]) -> list[str]:
    """What the runs say about the questions that one asks before a move."""
    ours, lines = runs[0].figures, list[str]()
    busiest = ours.busiest
    lines.append(
        f"{busiest.stage} is the busiest: its {busiest.workers} workers are busy for "
        f"{busiest.utilisation:.1%} of {shown(ours.wall_s)}."
    )
    for run in runs[1:]:
        other = run.figures
        if other.shape == Shape.GLOBAL_REGROUP.value:
            lines.append(
                f"regroup tail: {shown(other.tail_s)}, {_share(other):.1%} of the wall; by lineage "
                f"{shown(ours.tail_s)} are left. {_worth(ours, other)}"
            )
        elif other.shape == Shape.WHOLE_DOCUMENT.value:
            lines.append(f"against one Grain a document: {_worth(ours, other)}")
    return lines


def _worth(ours: Figures, other: Figures) -> str:
    saved = 1 - ours.wall_s / other.wall_s if other.wall_s else 0.0
    if saved < 0:
        return f"Lineage takes {-saved:.1%} longer."
    worth = "worth moving" if saved >= _WORTH else "no reason to move"
    return f"Lineage saves {saved:.1%} of the wall: {worth}."


def sweep_lines(runs: Sequence[Simulated]) -> list[str]:
    """One line for each setting of the stage that changes."""
    stages = [{stage.name: stage for stage in run.record.stages} for run in runs]
    name = next((one for one in stages[0] if len({each[one] for each in stages}) > 1), "")
    name = name or runs[0].figures.busiest.stage
    head = ["workers", "batch", "wall", "speed-up", "utilisation", "fill", "busiest stage"]
    rows: list[list[str]] = []
    for run, known in zip(runs, stages, strict=True):
        figures = {stage.stage: stage for stage in run.figures.stages}[name]
        rows.append(
            [
                str(known[name].workers),
                str(known[name].batch),
                shown(run.figures.wall_s),
                f"{runs[0].figures.wall_s / run.figures.wall_s:.2f}" if run.figures.wall_s else "-",
                f"{figures.utilisation:.1%}",
                f"{figures.fill:.1%}",
                run.figures.busiest.stage,
            ]
        )
    return [f"{name}:", *aligned([head, *rows])]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
