"""A picture of plain shapes, and its SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from xml.sax.saxutils import escape

Point: TypeAlias = tuple[float, float]
FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True, slots=True)
class Area:
    """A filled polygon."""

    points: tuple[Point, ...]
    color: str


@dataclass(frozen=True, slots=True)
class Line:
    """A thin straight line."""

    start: Point
    end: Point
    color: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """One line of text; `at` is its base line's start, middle or end as `anchor` says."""

    at: Point
    text: str
    size: int = 12
    color: str = "#222222"
    anchor: str = "start"


Mark: TypeAlias = Area | Line | Words


@dataclass(slots=True)
class Picture:
    """Pixels to the right and down from the upper left corner; later marks lie above."""

    width: int
    height: int
    marks: list[Mark] = field(default_factory=list[Mark])


def svg(picture: Picture) -> str:
    """The picture as an SVG document."""
    size = f"width='{picture.width}' height='{picture.height}'"
    box = f"viewBox='0 0 {picture.width} {picture.height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {box} {FONT}>",
        f"<rect {size} fill='#ffffff'/>",
        *map(_element, picture.marks),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _element(mark: Mark) -> str:
    match mark:
        case Area():
            return f"<polygon points='{_points(mark.points)}' fill='{mark.color}'/>"
        case Line():
            (x1, y1), (x2, y2) = mark.start, mark.end
            dash = " stroke-dasharray='3 3'" if mark.dashed else ""
            ends = f"x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'"
            return f"<line {ends} stroke='{mark.color}'{dash}/>"
        case Words():
            place = f"x='{mark.at[0]:.1f}' y='{mark.at[1]:.1f}' text-anchor='{mark.anchor}'"
            look = f"font-size='{mark.size}' fill='{mark.color}'"
            return f"<text {place} {look}>{escape(mark.text)}</text>"


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
