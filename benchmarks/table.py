"""docs/benchmarks.md, made from the JSON in `benchmarks/results`: `python -m benchmarks table`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
BASE = "loop"

_HEAD = """# Benchmarks

Made by `make bench ARGS=table` from `benchmarks/results/`; not edited by hand.

Every system does the same seeded work in a process and a Ray of its own, one after another, round
by round. The clock starts with the first stage call, once all workers are there, and stops with the
last output in the driver. Ratios are medians over rounds, each against the plain loop (or what the
table names) of the same round, with the least and the greatest in brackets: a difference within
these is none. Absolute times are this machine's and only show proportion.
"""

_TITLES = {
    "w1": "W1, overhead: pages that cost nothing",
    "w2": "W2, a simulated GPU between a renderer and an upload",
    "w4": "W4, strong scaling: 50 ms a page",
    "w4_fine": "W4 fine: 64 workers, 30 ms a call and 4 ms a page",
    "w6": "W6, payloads beyond the object store",
    "w6_big": "W6, one document larger than the object store",
    "w7": "W7, real PDFs, rendered and read",
    "ablation": "Ablation: whole documents, pages re-batched across parents, FIFO",
}

Runs = Sequence[dict[str, Any]]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (least-greatest), the bracket only where there are several."""
    if not values:
        return "-"
    middle = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def ratios(runs: Runs, base: Runs, figure: Callable[[dict[str, Any]], float]) -> list[float]:
    """Round by round, where both did it."""
    pairs = zip(runs, base, strict=False)
    return [figure(one) / figure(other) for one, other in pairs if _both(one, other)]


def _both(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return "error" not in one and "error" not in other


def section(found: dict[str, Any]) -> str:
    """One workload's part of the page."""
    work, machine, runs = found["workload"], found["machine"], found["runs"]
    base = BASE if BASE in runs else next(iter(runs))
    payload = f", {work['payload_mib']} MiB" if work["payload_mib"] else ""
    store = f" through an object store of {work['store_mib']} MiB" if work["store_mib"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    rounds = max(len(each) for each in runs.values())
    changed = "".join(f", {key}={value}" for key, value in found["settings"].items())
    lines = [
        f"## {_TITLES[found['name']]}",
        "",
        f"{work['documents']:,} documents, {work['pages']:,} pages (longest {work['longest']:,})"
        f"{payload}{store}, batches of {work['batch']}{changed}; {rounds} rounds.",
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}; "
        f"{versions}.",
        "",
        f"| system | x {base} | x bound | s | first document, s | tail, s | fill | calls | "
        "driver grew, MiB | spilled, MiB | other load, cores | outputs |",
        "| --- | " + "--- | " * 11,
    ]
    agreed = _reference(runs)
    lines += [
        _row(system, runs[system], runs[base], found["systems"][system]["bound_s"], agreed)
        for system in runs
    ]
    lines += ["", *(f"- `{name}`: {each['about']}" for name, each in _once(found).items()), ""]
    return "\n".join(line.rstrip() for line in lines)


def _once(found: dict[str, Any]) -> dict[str, Any]:
    """A system's settings are told once, under its bare name."""
    return {name.split("@")[0].split(":")[0]: each for name, each in found["systems"].items()}


def _reference(runs: dict[str, Runs]) -> str | None:
    """The sequential run's outputs, else the plain loop's."""
    for system in ("sequential", BASE):
        for one in runs.get(system, ()):
            if "digest" in one:
                digest: str = one["digest"]
                return digest
    return None


def _row(system: str, runs: Runs, base: Runs, bound_s: float, agreed: str | None) -> str:
    good = [one for one in runs if "error" not in one]
    failed = len(runs) - len(good)
    if not good:
        why = runs[0]["error"].replace("|", "/") if runs else "not run"
        return f"| {system} | failed: {why} |" + " |" * 10

    def of(figure: Callable[[dict[str, Any]], float], digits: int = 2) -> str:
        return spread([figure(one) for one in good], digits)

    def middle(figure: Callable[[dict[str, Any]], float], digits: int = 2) -> str:
        return f"{statistics.median(figure(one) for one in good):.{digits}f}"

    right = all(one["complete"] and agreed in (None, one["digest"]) for one in good)
    cells = [
        system,
        spread(ratios(runs, base, lambda one: one["wall_s"])),
        of(lambda one: one["wall_s"] / bound_s) if bound_s else "-",
        middle(lambda one: one["wall_s"]),
        middle(lambda one: one["first_document_s"]),
        middle(lambda one: one["tail_s"]),
        middle(lambda one: one["fill"]),
        middle(lambda one: one["calls"]["read"], 0),
        middle(lambda one: one["driver_mib"]["peak"] - one["driver_mib"]["before"], 0),
        middle(lambda one: one["store"]["spilled_mib"], 0) if "store" in good[0] else "-",
        middle(lambda one: one["others_cores"]),
        ("equal" if right else "WRONG") + (f", {failed} failed" if failed else ""),
    ]
    return "| " + " | ".join(cells) + " |"


def page(results: Path = RESULTS) -> str:
    """The whole page."""
    parts = [_HEAD]
    for name in _TITLES:
        file = results / f"{name}.json"
        if file.exists():
            parts.append(section(json.loads(file.read_text())))
    return "\n".join(parts)


def write() -> None:
    """Make docs/benchmarks.md anew."""
    PAGE.write_text(page())
