"""What became of the demo's files against what should have become of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rayorch_prefect.workloads.samples import Sample


@dataclass(frozen=True, slots=True)
class Ended:
    """How one source ended, from the manifest and the stored files.

    `pages` counts the pages of its JSON file that are in their place, `missing` its gaps,
    `altered` names the files whose content is not what the manifest says.
    """

    outcome: str
    failure: str | None = None
    files: tuple[str, ...] = ()
    pages: int = 0
    missing: int = 0
    altered: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.failure:
            return f"{self.outcome} as {self.failure}"
        gaps = f" and {self.missing} gaps" if self.missing else ""
        return f"{self.outcome} with {self.pages} pages{gaps}"


def read_ends(manifest: Iterable[Mapping[str, Any]], source: str, out: Path) -> dict[str, Ended]:
    """By file name, from the manifest's rows and the copy of the destination in `out`.

    `source` is the sources' location as text; output keys lie below `out` without their first
    segment, which is the destination's prefix.
    """
    return {row["uri"].removeprefix(source): _ended(row, out) for row in manifest}


def differences(samples: Iterable[Sample], ends: Mapping[str, Ended]) -> list[str]:
    """One line for each file that did not end as its sample says; empty if all did."""
    expected = {sample.name: sample for sample in samples}
    found = [
        f"{name}: {difference}"
        for name, sample in expected.items()
        for difference in _differences(sample, ends.get(name))
    ]
    strangers = sorted(ends.keys() - expected.keys())
    return found + [f"{name}: not among the samples, yet {ends[name]}" for name in strangers]


def strays(ends: Mapping[str, Ended], out: Path) -> list[str]:
    """One line for each stored file that the manifest does not name."""
    known = {file for ended in ends.values() for file in ended.files}
    there = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    outputs = {name for name in there if not name.startswith("_rayorch/")}
    return [f"{name}: stored, and not in the manifest" for name in sorted(outputs - known)]


def _differences(sample: Sample, ended: Ended | None) -> Iterable[str]:
    expected = (
        Ended("failed", failure=sample.failure)
        if sample.failure
        else Ended("published", pages=sample.pages)
    )
    if ended is None:
        yield f"expected {expected}, and the manifest has no row"
        return
    shown = (ended.outcome, ended.failure, ended.pages, ended.missing)
    if shown != (expected.outcome, expected.failure, expected.pages, 0):
        yield f"expected {expected}, got {ended}"
    if bool(ended.files) == bool(sample.failure):
        yield f"expected {'no files' if sample.failure else 'files'}, got {list(ended.files)}"
    if ended.altered:
        yield f"not stored as the manifest says: {', '.join(ended.altered)}"


def _ended(row: Mapping[str, Any], out: Path) -> Ended:
    files = tuple(key.partition("/")[2] for key in row["output_keys"])
    digests = dict(zip(files, row["sha256"], strict=True))
    document = _document(out, files)
    return Ended(
        outcome=row["row_outcome"],
        failure=row["type"],
        files=files,
        pages=sum(page["ordinal"] == i for i, page in enumerate(document["pages"])),
        missing=len(document["missing"]),
        altered=tuple(name for name in files if _digest(out / name) != digests[name]),
    )


def _document(out: Path, files: Iterable[str]) -> dict[str, Any]:
    for name in files:
        if name.endswith(".json") and (out / name).is_file():
            content: dict[str, Any] = json.loads((out / name).read_bytes())
            return content
    return {"pages": [], "missing": []}


def _digest(path: Path) -> str | None:
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else None
