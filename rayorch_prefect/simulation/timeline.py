"""Runs drawn one below the other: how many workers of each stage are busy, and what came out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from rayorch_prefect.simulation.picture import Area, Line, Picture, Point, Words
from rayorch_prefect.simulation.record import Work
from rayorch_prefect.simulation.simulate import Simulated

WIDTH, LEFT, RIGHT = 900, 130, 40
STRIP, GAP, TITLE, FOOT = 26, 5, 34, 40
BINS = 360
COLORS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#9c755f", "#e15759")
OUT, GRID, FAINT = "#333333", "#dddddd", "#f4f4f4"
STEPS = (1.0, 2.0, 5.0)


def drawn(runs: Sequence[Simulated]) -> Picture:
    """All of them on one scale of seconds. Stages have the same color in each."""
    span = max(run.figures.wall_s for run in runs) or 1.0
    colors: dict[str, str] = {}
    for run in runs:
        for stage in run.record.stages:
            colors.setdefault(stage.name, COLORS[len(colors) % len(COLORS)])
    heights = [TITLE + (len(run.record.stages) + 1) * (STRIP + GAP) for run in runs]
    picture = Picture(WIDTH, sum(heights) + FOOT)
    top = 0.0
    for run, height in zip(runs, heights, strict=True):
        _panel(picture, run, span, top, colors)
        top += height
    _axis(picture, span, top)
    return picture


def _x(at: float, span: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * at / span


def _panel(
    picture: Picture, run: Simulated, span: float, top: float, colors: dict[str, str]
) -> None:
    figures, record = run.figures, run.record
    title = f"{figures.shape}, {figures.policy}: {shown(figures.wall_s)}"
    tail = f"{shown(figures.tail_s)} of it after the last page"
    picture.marks.append(Words((LEFT, top + TITLE - 10), f"{title}, {tail}", 13))
    y = top + TITLE
    for stage, work in zip(record.stages, record.work, strict=True):
        heights = [one / stage.workers for one in busy(work, span)]
        name = f"{stage.name} x {stage.workers}"
        _strip(picture, name, heights, y, colors[stage.name], figures.wall_s / span)
        y += STRIP + GAP
    out = [record.ended[document] for document in record.completed]
    heights = cumulated(out, span, figures.documents)
    _strip(picture, "documents out", heights, y, OUT, figures.wall_s / span)
    for at, dashed in ((figures.last_page_s, True), (figures.wall_s, False)):
        x = _x(at, span)
        picture.marks.append(Line((x, top + TITLE - 4), (x, y + STRIP), OUT, dashed))


def _strip(
    picture: Picture, name: str, heights: Sequence[float], y: float, color: str, share: float
) -> None:
    end, base = _x(share, 1.0), y + STRIP
    frame = ((LEFT, y), (end, y), (end, base), (LEFT, base))
    picture.marks.append(Area(tuple((float(a), float(b)) for a, b in frame), FAINT))
    points: list[Point] = [(float(LEFT), base)]
    at = 0
    for height, alike in groupby(round(one * STRIP) for one in heights):
        level, first = base - min(STRIP, height), at
        at += sum(1 for _ in alike)
        points += [(min(end, _x(one, BINS)), level) for one in (first, at)]
    points.append((end, base))
    picture.marks.append(Area(tuple(points), color))
    picture.marks.append(Words((LEFT - 8, base - 8), name, 12, anchor="end"))


def busy(work: Iterable[Work], span: float) -> list[float]:
    """Mean number of busy workers in each of `BINS` equal parts of the span."""
    width = span / BINS
    found = [0.0] * BINS
    for one in work:
        first, last = int(one.begun / width), min(BINS - 1, int(one.ended / width))
        for at in range(first, last + 1):
            begun, ended = max(one.begun, at * width), min(one.ended, (at + 1) * width)
            found[at] += max(0.0, ended - begun) / width
    return found


def cumulated(out: Sequence[float], span: float, total: int) -> list[float]:
    """The share of all documents that were out by the end of each part."""
    counts = [0] * BINS
    for at in out:
        counts[min(BINS - 1, int(at / span * BINS))] += 1
    so_far = 0
    return [(so_far := so_far + n) / total for n in counts]


def _axis(picture: Picture, span: float, y: float) -> None:
    step = _step(span)
    for tick in range(int(span / step) + 1):
        x = _x(tick * step, span)
        picture.marks.insert(0, Line((x, TITLE), (x, y), GRID))
        picture.marks.append(Words((x, y + 16), f"{tick * step:g} s", 11, anchor="middle"))


def _step(span: float) -> float:
    """About eight ticks, at round numbers."""
    rough = span / 8
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next((one * magnitude for one in STEPS if one * magnitude >= rough), 10 * magnitude)


def shown(seconds: float) -> str:
    """Seconds with what digits matter."""
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"
