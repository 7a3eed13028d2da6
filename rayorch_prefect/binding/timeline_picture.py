"""A night's timeline as a picture: stages, uploads, and how many parents were done by when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from rayorch_prefect.binding.stage_watch import busy_series
from rayorch_prefect.binding.summary_page import duration
from rayorch_prefect.binding.timeline import Timeline
from rayorch_prefect.simulation.picture import Area, Line, Mark, Picture, Point, Words

UPLOADS_BEGUN = "uploads begun"
UPLOADS_ENDED = "uploads ended"
PUBLISHED = "published"
FAILED = "failed"
OTHER = "dropped or not processed"

_WIDTH = 960
_LEFT, _RIGHT, _TOP = 170, 20, 14
_LANE, _LANE_GAP, _CHART = 22, 8, 120
_LABEL = 24
_BLUE, _PALE, _GREEN, _RED, _GREY, _LINE = (
    "#2f6db5",
    "#dbe7f5",
    "#3f9b5f",
    "#c44536",
    "#9a9a9a",
    "#cccccc",
)
_TICKS = 4


def timeline_picture(timeline: Timeline, workers: dict[str, int], sources: int) -> Picture:
    """One lane a stage (`workers` by stage), one for uploads, then the parents over time.

    The height of a lane is full where all workers of the stage were busy. `sources` is the upper
    end of the parents' axis.
    """
    lanes = [(stage, *_busy(timeline, stage, count)) for stage, count in workers.items()]
    lanes.append(("uploads", *_uploads(timeline)))
    height = _TOP + len(lanes) * (_LANE + _LANE_GAP) + _CHART + 2 * _LABEL
    picture = Picture(_WIDTH, height)
    top = _TOP
    for name, shares, window in lanes:
        picture.marks += _lane(name, shares, window, timeline.used, top)
        top += _LANE + _LANE_GAP
    picture.marks += _parents(timeline, sources, top)
    picture.marks += _axis(timeline, top + _CHART)
    return picture


def _busy(
    timeline: Timeline, stage: str, workers: int
) -> tuple[list[float], tuple[int, int] | None]:
    name, full = busy_series(stage), workers * timeline.width_s
    shares = [min(1.0, each / full) if full else 0.0 for each in timeline.series(name)]
    return shares, timeline.window(name)


def _uploads(timeline: Timeline) -> tuple[list[float], tuple[int, int] | None]:
    begun = list(accumulate(timeline.series(UPLOADS_BEGUN)))
    ended = [0.0, *accumulate(timeline.series(UPLOADS_ENDED))]
    # Under way in a bucket: begun by its end, and not ended before it.
    under_way = [max(0.0, a - b) for a, b in zip(begun, ended, strict=False)]
    most = max(under_way, default=0.0)
    windows = [each for name in (UPLOADS_BEGUN, UPLOADS_ENDED) if (each := timeline.window(name))]
    window = (min(a for a, _ in windows), max(b for _, b in windows)) if windows else None
    return [each / most if most else 0.0 for each in under_way], window


def _lane(
    name: str,
    shares: Sequence[float],
    window: tuple[int, int] | None,
    buckets: int,
    top: float,
) -> Iterable[Mark]:
    bottom = top + _LANE
    yield Words((_LEFT - 8, bottom - 6), name[:24], anchor="end")
    if window:
        first, last = (_x(i, buckets) for i in (window[0], window[1] + 1))
        yield Area(((first, top), (last, top), (last, bottom), (first, bottom)), _PALE)
    if any(shares):
        yield Area(_steps(shares, buckets, bottom, _LANE), _BLUE)
    yield Line((_LEFT, bottom), (_WIDTH - _RIGHT, bottom), _LINE)


def _parents(timeline: Timeline, sources: int, top: float) -> Iterable[Mark]:
    bottom = top + _CHART
    series = [list(accumulate(timeline.series(name))) for name in (PUBLISHED, FAILED, OTHER)]
    buckets = timeline.used
    stacked = [0.0] * buckets
    areas: list[Mark] = []
    for sums, color in zip(series, (_GREEN, _RED, _GREY), strict=True):
        if any(sums):
            stacked = [a + b for a, b in zip(stacked, sums, strict=True)]
            shares = [each / (sources or 1) for each in stacked]
            areas.insert(0, Area(_steps(shares, buckets, bottom, _CHART), color))
    yield from areas
    yield Words((_LEFT - 8, top + 12), f"{sources} sources", anchor="end")
    for i, (name, color) in enumerate(((PUBLISHED, _GREEN), (FAILED, _RED), (OTHER, _GREY))):
        yield Words((_LEFT - 8, top + 32 + 16 * i), name, size=11, color=color, anchor="end")
    yield Line((_LEFT, bottom), (_WIDTH - _RIGHT, bottom), _LINE)


def _axis(timeline: Timeline, bottom: float) -> Iterable[Mark]:
    for i in range(_TICKS + 1):
        x = _LEFT + (_WIDTH - _RIGHT - _LEFT) * i / _TICKS
        yield Line((x, _TOP), (x, bottom), _LINE, dashed=True)
        at = duration(timeline.seconds * i / _TICKS)
        yield Words((x, bottom + 16), at, size=11, anchor="end" if i == _TICKS else "middle")


def _steps(
    shares: Sequence[float], buckets: int, bottom: float, height: float
) -> tuple[Point, ...]:
    """A filled staircase over the buckets; as wide as they are at most."""
    points: list[Point] = [(_x(0, buckets), bottom)]
    for i, share in enumerate(shares):
        y = bottom - height * min(1.0, share)
        points += [(_x(i, buckets), y), (_x(i + 1, buckets), y)]
    return (*points, (_x(len(shares), buckets), bottom))


def _x(bucket: int, buckets: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * bucket / buckets
