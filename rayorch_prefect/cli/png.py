"""A picture as PNG, by Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.picture import Area, Line, Picture, Words

# Pillow draws without smoothing: larger, and then made smaller.
_FINER = 2
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def write_png(picture: Picture, path: Path) -> None:
    """Write the file. Raises UsageError where Pillow is not installed."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise UsageError(
            "a PNG needs Pillow: pip install 'rayorch-prefect[pictures]', or draw an --svg"
        ) from None
    size = (picture.width * _FINER, picture.height * _FINER)
    image = Image.new("RGB", size, "#ffffff")
    draw = ImageDraw.Draw(image)
    for mark in picture.marks:
        _draw(draw, mark)
    image.resize((picture.width, picture.height), Image.Resampling.LANCZOS).save(path, "PNG")


def _draw(draw: Any, mark: Area | Line | Words) -> None:
    from PIL import ImageFont

    match mark:
        case Area():
            draw.polygon([_scaled(point) for point in mark.points], fill=mark.color)
        case Line():
            draw.line([_scaled(mark.start), _scaled(mark.end)], fill=mark.color, width=_FINER)
        case Words():
            font = ImageFont.load_default(mark.size * _FINER)
            anchor = _ANCHORS[mark.anchor]
            draw.text(_scaled(mark.at), mark.text, fill=mark.color, font=font, anchor=anchor)


def _scaled(point: tuple[float, float]) -> tuple[float, float]:
    return point[0] * _FINER, point[1] * _FINER
