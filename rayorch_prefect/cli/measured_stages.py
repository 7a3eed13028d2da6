"""Stages as a finished run measured them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.chain import Level, Stage

_NEEDED = ("stage", "domain", "depth", "batch_size", "workers", "grains", "call_s", "row_s")


def stages_in(path: Path) -> tuple[list[Stage], int | None]:
    """The stages in a summary file, and the pages of a range where it has ranges.

    Raises UsageError for a file that is none, or whose Program is no chain of up to three levels.
    """
    calls = _calls(path)
    depths = sorted({call["depth"] for call in calls})
    domains = {call["domain"] for call in calls}
    if len(domains) > len(depths) or depths[-1] not in (1, 2):
        raise UsageError(
            f"{path}: the Program is no chain of documents, ranges and pages (its stages lie on "
            f"{', '.join(sorted(domains))}); give its stages by --stage"
        )
    return [_stage(call, depths[-1]) for call in calls], _step(calls, depths[-1])


def _calls(path: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"metrics of {path}: {error}") from error
    calls = cast(Any, found).get("calls") if isinstance(found, dict) else None
    fits = isinstance(calls, list) and bool(calls)
    if not fits or not all(
        isinstance(call, dict) and all(name in call for name in _NEEDED)
        for call in cast(list[Any], calls)
    ):
        raise UsageError(
            f"metrics of {path}: expected the JSON of `run --summary` or of Engine.metrics, with "
            "stages in `calls`"
        )
    return cast(list[dict[str, Any]], calls)


def _stage(call: dict[str, Any], deepest: int) -> Stage:
    level = Level.PAGE if call["depth"] == deepest else Level.RANGE
    return Stage(
        name=call["stage"],
        level=level if call["depth"] else Level.DOCUMENT,
        batch=call["batch_size"],
        workers=call["workers"],
        call_s=call["call_s"],
        row_s=call["row_s"],
        child_s=call.get("child_s", 0.0),
    )


def _step(calls: list[dict[str, Any]], deepest: int) -> int | None:
    """About as many pages as the ranges had on average."""
    if deepest < 2:
        return None
    pages = max((call["grains"] for call in calls if call["depth"] == 2), default=0)
    ranges = max((call["grains"] for call in calls if call["depth"] == 1), default=0)
    return max(1, round(pages / ranges)) if ranges else None
