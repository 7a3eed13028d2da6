"""docs/paper.md, made from what was simulated and from what `make bench` measured."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.paper.experiments import Row
from benchmarks.rounds import ROOT

SIMULATED = Path(__file__).with_name("simulated.json")
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "paper.md"

_HEAD = """# The paper's experiments

Made by `python -m benchmarks.paper all`; not edited by hand.

Three kinds of figures stand side by side. *Published*: the RayOrch paper's, on NVIDIA H20.
*Simulated*: ours at the paper's scale, by our scheduler under a virtual clock
([simulator](simulator.md)). *Measured*: our own runs on a CPU, of a far smaller workload whose
stages sleep (`make bench`, or `--measure` here); only ratios of these say anything.

Documents are drawn by a seed so that they have the paper's totals and extremes, as it tells no
more of them. What a page takes of a GPU is **calibrated** on one published figure, the 15.26 h on 4
GPUs (of a clip: on the 3.32 h on 8). What the paper does not tell is assumed: OCR in batches of 48;
rendering 20 ms a page on 32 workers; assembly and upload 0.5 s a document on 16 workers each. All
else that is simulated is a prediction, with no cold start. The failure experiment needs no
calibration: its stage takes 50 ms a page.
"""
_TITLES = {
    "comparison": "End to end on 64 GPUs: 3,689 PDFs, 174,744 pages",
    "scaling": "Strong scaling",
    "ablation": "Ablation on the scheduling",
    "failure": "Failures: one page of each of the 99 largest documents, 51.9 % of the pages",
}
_NOTES = {
    "comparison": "The published times are of a cold start; the simulated ones are not, and know "
    "of the shape of a system alone, not of its overheads. The global regroup by itself explains "
    "little of the published distance at these assumed costs: for all of the 650 s between RayOrch "
    "and Ray Data, what follows the regroup would have to take about 2.8 s a document more on its "
    "16 workers.",
    "scaling": "What the simulated runs lose is the last wave of batches.",
    "ablation": "The published ablation is of another corpus, of which the paper tells too little; "
    "here it is the comparison's. The order of pages changes little of the wall under a virtual "
    "clock: it changes when the first document is out.",
    "failure": "Of pages that can still be saved: with the poison on the last page, none can be.",
}


def saved(rows: dict[str, Sequence[Row]], file: Path = SIMULATED) -> None:
    """Keep simulated rows beside those of other experiments."""
    known = json.loads(file.read_text()) if file.exists() else {}
    known.update({name: [asdict(row) for row in each] for name, each in rows.items()})
    file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def page(file: Path = SIMULATED, results: Path = RESULTS) -> str:
    """The whole page."""
    known = json.loads(file.read_text()) if file.exists() else {}
    parts = [_HEAD]
    for name, title in _TITLES.items():
        rows = [Row(**row) for row in known.get(name, ())]
        parts.append("\n".join([f"## {title}", "", *_table(name, rows, results), ""]))
    return "\n".join(parts)


def _table(name: str, rows: Sequence[Row], results: Path) -> list[str]:
    if not rows:
        return [f"Not simulated yet: `python -m benchmarks.paper {name}`."]
    lines = ["| | published | simulated | measured |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = (row.what, row.published, row.simulated, measured(row.key, results))
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", _NOTES[name]]


def measured(key: str, results: Path) -> str:
    """What our own runs say of a row; "-" where there are none."""
    experiment = key.partition("/")[0]
    if experiment not in _MEASURED or not (file := results / _MEASURED[experiment][0]).exists():
        return "-"
    return _MEASURED[experiment][1](key, json.loads(file.read_text())["runs"])


def _wall(runs: dict[str, Any], system: str) -> float | None:
    walls = [run["wall_s"] for run in runs.get(system, ()) if "error" not in run]
    return statistics.median(walls) if walls else None


def _over(runs: dict[str, Any], system: str, base: str) -> str:
    wall, other = _wall(runs, system), _wall(runs, base)
    return "-" if wall is None or not other else f"{wall / other:.2f} x"


def _comparison(key: str, runs: dict[str, Any]) -> str:
    peers = {"RayOrch": "ours", "Ray Data": "raydata", "Daft": "daft"}
    return _over(runs, peers.get(key.rpartition("/")[2], ""), "ours")


def _scaling(key: str, runs: dict[str, Any]) -> str:
    del key
    four, many = (_wall(runs, f"ours@read_workers={n}") for n in (4, 64))
    return "-" if four is None or not many else f"{four / many:.2f} x ({four / many / 16:.1%})"


def _ablation(key: str, runs: dict[str, Any]) -> str:
    steps = {
        "whole documents": ["ours:shape=document"],
        "pages re-batched": ["ours:policy=unordered"],
        "FIFO": ["ours"],
    }
    named = [name for name in steps[key.rpartition("/")[2]] if name in runs]
    return _over(runs, named[0], "ours:shape=document") if named else "-"


def _failure(key: str, runs: dict[str, Any]) -> str:
    """Siblings never computed, and the wall saved against the same policy without poison."""
    _, page, policy = key.split("/")
    ours = "ours" if policy == "fifo" else f"ours:policy={policy}"
    poisoned = ours if page == "first" else f"{ours}@page={page}"
    wall, whole = _wall(runs, poisoned), _wall(runs, f"{ours}@page=none")
    if wall is None or not whole:
        return "-"
    shares = [run["never_read"] for run in runs[poisoned] if "error" not in run]
    return f"{statistics.median(shares):.1%}, {1 - wall / whole:.1%} of the wall"


_MEASURED: dict[str, tuple[str, Callable[[str, dict[str, Any]], str]]] = {
    "comparison": ("w2.json", _comparison),
    "scaling": ("w4.json", _scaling),
    "ablation": ("ablation.json", _ablation),
    "failure": ("w3.json", _failure),
}


def write() -> None:
    """Make docs/paper.md anew."""
    PAGE.write_text(page())
