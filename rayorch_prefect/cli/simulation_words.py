"""What `simulate` is asked, in words: stages, children, poison, sweeps."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.chain import Level, Stage
from rayorch_prefect.simulation.load import Page, lognormal, poisoned

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_AMOUNT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(us|ms|s|min|h|)")


def seconds(text: str) -> float:
    """Such as 50ms, 1.2s, 3min or 4 (seconds). Raises UsageError."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no time; expected such as 50ms, 1.2s or 3min")
    return float(found[1]) * _UNITS[found[2]]


def number(text: str, what: str) -> int:
    """A whole number from 1 up. Raises UsageError."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"{what}: {text!r} is not a whole number from 1 up")
    return int(text)


def amount(text: str, what: str) -> float:
    """A number from 0 up; 5% is 0.05. Raises UsageError."""
    share = text.strip().endswith("%")
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{what}: {text!r} is not a number from 0 up")
    return value / 100 if share else value


def stages_of(texts: Sequence[str], known: Sequence[Stage] = ()) -> list[Stage]:
    """Stages in order; one that is known has what its text says changed. Raises UsageError."""
    found = {stage.name: stage for stage in known}
    for text in texts:
        name, _, settings = text.partition(":")
        found[name] = changed(found.get(name) or Stage(name), settings)
    return list(found.values())


def changed(stage: Stage, settings: str) -> Stage:
    """`key=value,...` of a stage. Raises UsageError for one that there is not."""
    changes: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, value = setting.partition("=")
        if not equals or key not in _SETTINGS:
            raise UsageError(
                f"stage {stage.name}: {setting!r} is no setting; expected {', '.join(_SETTINGS)}"
            )
        changes.update(_setting(stage.name, key, value))
    return dataclasses.replace(stage, **changes)


_TIMES = {"call": "call_s", "row": "row_s", "child": "child_s", "linger": "linger_s"}
_SETTINGS = ("level", "batch", "workers", *_TIMES, "sigma", "tail", "rowwise")


def _setting(stage: str, key: str, value: str) -> Mapping[str, Any]:
    what = f"stage {stage}: {key}"
    if key in _TIMES:
        return {_TIMES[key]: seconds(value)}
    if key in ("batch", "workers"):
        return {key: number(value, what)}
    if key == "sigma":
        return {key: amount(value, what)}
    if key == "tail":
        share, _, factor = value.partition("x")
        return {"tail_share": amount(share, what), "tail_factor": amount(factor or "1", what)}
    if key == "rowwise":
        return {key: _one_of(value, {"yes": True, "no": False}, what)}
    return {key: _one_of(value, {level.value: level for level in Level}, what)}


def _one_of(value: str, known: Mapping[str, Any], what: str) -> Any:
    if value not in known:
        raise UsageError(f"{what}: {value!r} is none of {', '.join(known)}")
    return known[value]


def children_of(text: str, seed: int) -> tuple[int, ...]:
    """`lognormal:MEDIAN,SIGMA,N[,MAX]`, or a file with a count a line, or in the column `children`
    or `pages` of a CSV (its last one where it has no names). Raises UsageError."""
    kind, colon, rest = text.partition(":")
    if kind != "lognormal" or not colon:
        return _counts_in(Path(text))
    parts = rest.split(",")
    if len(parts) not in (3, 4):
        raise UsageError(f"{text}: expected lognormal:MEDIAN,SIGMA,N or ...,N,MAX")
    median, sigma = amount(parts[0], text), amount(parts[1], text)
    most = number(parts[3], text) if len(parts) == 4 else None
    return lognormal(median, sigma, number(parts[2], text), most, seed)


def _counts_in(path: Path) -> tuple[int, ...]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeError, csv.Error) as error:
        raise UsageError(f"children of {path}: {error}") from error
    column = -1
    if lines and not lines[0][-1].strip().isdecimal():
        head = [name.strip().lower() for name in lines.pop(0)]
        named = [at for at, name in enumerate(head) if name in ("children", "pages")]
        if not named:
            raise UsageError(
                f"children of {path}: the first line, {','.join(head)!r}, has neither a whole "
                "number nor a column `children` or `pages`"
            )
        column = named[0]
    counts: list[int] = []
    for line in lines:
        cell = line[column].strip() if column < len(line) else ""
        if not cell.isdecimal():
            raise UsageError(f"children of {path}: {','.join(line)!r} has no whole number")
        counts.append(int(cell))
    return tuple(counts)


def poison_of(text: str, counts: Sequence[int], seed: int) -> dict[int, int]:
    """`5%:first`, `99:random`: which page of the largest documents fails. Raises UsageError."""
    share, _, page = text.partition(":")
    which = _one_of(page, {one.value: one for one in Page}, f"poison {text}")
    if share.endswith("%"):
        documents = round(amount(share, f"poison {text}") * len(counts))
    else:
        documents = number(share, f"poison {text}")
    if documents > len(counts):
        raise UsageError(f"poison {text}: there are {len(counts)} documents")
    return poisoned(counts, documents, which, seed)


def sweep_of(text: str, stages: Sequence[Stage], busiest: str) -> list[Stage]:
    """`workers=8,16`, `ocr.batch=16,32`: the stage as it is in each run. Raises UsageError."""
    named, equals, values = text.partition("=")
    name, dot, key = named.rpartition(".")
    known = {stage.name: stage for stage in stages}
    stage = known.get(name if dot else busiest)
    if dot and stage is None:
        raise UsageError(f"sweep {text}: there is no stage {name}; known: {', '.join(known)}")
    if not equals or key not in ("workers", "batch") or stage is None:
        raise UsageError(f"sweep {text}: expected workers=8,16 or STAGE.batch=16,32")
    return [changed(stage, f"{key}={value}") for value in values.split(",")]
