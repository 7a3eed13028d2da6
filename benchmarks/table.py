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
last output in the driver. Ratios are medians over rounds, each against the plain loop of the same
round and the same settings (without one: against the first system that has them), with the least
and the greatest in brackets: a difference within these is none. Absolute times are this machine's
and only show proportion.
"""

_TITLES = {
    "w1": "W1, overhead: pages that cost nothing",
    "w2": "W2, a simulated GPU between a renderer and an upload",
    "w3": "W3, poison: half of the pages belong to documents that one page of theirs spoils",
    "w4": "W4, strong scaling: 50 ms a page",
    "w4_fine": "W4 fine: 64 workers, 30 ms a call and 4 ms a page",
    "w6": "W6, payloads beyond the object store",
    "w6_big": "W6, one document larger than the object store",
    "w7": "W7, real PDFs, rendered and read",
    "w8": "W8, the Prefect layer: a night against the same Engine and uploads without Prefect",
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
    payload = f", {work['payload_mib']} MiB" if work["payload_mib"] else ""
    store = f" through an object store of {work['store_mib']} MiB" if work["store_mib"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    most = max(len(each) for each in runs.values())
    rounds = f"{most} round{'s' * (most != 1)}"
    changed = "".join(f", {key}={value}" for key, value in found["settings"].items())
    lines = [
        f"## {_TITLES[found['name']]}",
        "",
        f"{work['documents']:,} documents, {work['pages']:,} pages (longest {work['longest']:,})"
        f"{payload}{store}, batches of {work['batch']}{changed}; {rounds}.",
        f"{machine['cores']} cores, {machine['memory_gib']} GiB, Python {machine['python']}; "
        f"{versions}.",
        "",
        "| system | x base | x bound | s | first document, s | tail, s | fill | calls | "
        "driver grew, MiB | all private, MiB | spilled, MiB | other load, cores | outputs |",
        "| --- | " + "--- | " * 12,
        *(_row(system, found) for system in runs),
        "",
        *_scaling(runs),
        *_poison(runs),
        *(f"- `{name}`: {each['about']}" for name, each in _once(found).items()),
        "",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _settings_of(system: str) -> list[str]:
    return system.split("@")[1:]


def base_of(system: str, runs: dict[str, Runs]) -> str:
    """The system that this one is held against: one with the same settings, else any loop."""
    alike = [other for other in runs if _settings_of(other) == _settings_of(system)]
    loops = [other for other in (*alike, *runs) if other.split("@")[0] == BASE]
    return (loops or alike)[0]


def _scaling(runs: dict[str, Runs]) -> list[str]:
    """How many times faster 64 readers are than 4, where both were measured."""
    few, many = "@read_workers=4", "@read_workers=64"
    lines = [
        f"- {system.removesuffix(many)}, from 4 to 64 readers: {spread(times)} times as fast."
        for system in runs
        if system.endswith(many)
        and (times := ratios(runs.get(system.removesuffix(many) + few, ()), runs[system], _wall))
    ]
    return [*lines, ""] if lines else []


def _poison(runs: dict[str, Runs]) -> list[str]:
    """What was not done for lost documents, and what that saved of the wall without poison."""
    healthy = runs.get("ours@page=none", ())
    lines: list[str] = []
    for system, each in runs.items():
        shares = [one["never_read"] for one in each if one.get("never_read")]
        if shares:
            walls = spread(ratios(each, healthy, _wall))
            lines.append(
                f"- {system}: {spread(shares)} of the poisoned pages' siblings were never read; "
                f"{walls} x the wall without poison."
            )
    return [*lines, ""] if lines else []


def _wall(one: dict[str, Any]) -> float:
    wall: float = one["wall_s"]
    return wall


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


def _row(system: str, found: dict[str, Any]) -> str:
    runs: Runs = found["runs"][system]
    base: Runs = found["runs"][base_of(system, found["runs"])]
    agreed = _reference(found["runs"])
    good = [one for one in runs if "error" not in one]
    failed = len(runs) - len(good)
    if not good:
        why = runs[0]["error"].replace("|", "/") if runs else "not run"
        return f"| {system} | failed: {why} |" + " |" * 11

    def bound_s(one: dict[str, Any]) -> float:
        """Of real pages: what their stages computed, spread over the readers."""
        if found["workload"]["kind"] == "pdf":
            return float(one["stage_cpu_s"]) / float(found["workload"]["read_workers"])
        return float(found["systems"][system]["bound_s"])

    def of(figure: Callable[[dict[str, Any]], float], digits: int = 2) -> str:
        return spread([figure(one) for one in good], digits)

    def middle(figure: Callable[[dict[str, Any]], float], digits: int = 2) -> str:
        return f"{statistics.median(figure(one) for one in good):.{digits}f}"

    right = all(one["complete"] and agreed in (None, one["digest"]) for one in good)
    cells = [
        system,
        spread(ratios(runs, base, _wall)),
        of(lambda one: one["wall_s"] / bound_s(one)) if bound_s(good[0]) else "-",
        middle(_wall),
        middle(lambda one: one["first_document_s"]),
        middle(lambda one: one["tail_s"]),
        middle(lambda one: one["fill"]),
        middle(lambda one: one["calls"]["read"], 0),
        middle(lambda one: one["driver_mib"]["peak"] - one["driver_mib"]["before"], 0),
        middle(lambda one: one["private_mib"], 0),
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
        else:
            parts.append(f"## {_TITLES[name]}\n\nNot measured yet: `make bench ARGS={name}`.\n")
    return "\n".join(parts)


def write() -> None:
    """Make docs/benchmarks.md anew."""
    PAGE.write_text(page())
