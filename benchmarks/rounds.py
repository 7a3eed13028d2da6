"""Interleaved rounds: every system once a round, each in its own process; figures go to JSON."""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from benchmarks.one import module_of, parsed
from benchmarks.processes import watched
from benchmarks.workloads import Workload, made

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("rayorch-prefect", "ray", "rayorch", "daft", "prefect", "numpy", "pyarrow")
QUIET = {
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "DAFT_PROGRESS_BAR": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
        "versions": found,
    }


def one(workload: str, settings: dict[str, Any], system: str, limit_s: float) -> dict[str, Any]:
    """One run; on failure `error` holds the last lines that it said."""
    folder = Path(tempfile.mkdtemp(prefix="rb-"))
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {
        **QUIET,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    spec = {"workload": workload, "settings": settings, "system": system, "folder": str(folder)}
    said, figures = folder / "said.txt", folder / "figures.json"
    try:
        seen = watched(["-m", "benchmarks.one", json.dumps(spec)], env, said, limit_s)
        if figures.exists():
            return {**json.loads(figures.read_text()), **seen}
        return {"error": _last_words(said, seen["status"], limit_s), **seen}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _last_words(said: Path, status: float, limit_s: float) -> str:
    lines = [line for line in said.read_text(errors="replace").splitlines() if line.strip()]
    why = f"killed after {limit_s:.0f} s" if status == -9 else f"exit status {status:.0f}"
    return f"{why}: {lines[-1][:300] if lines else 'it said nothing'}"


def described(workload: Workload) -> dict[str, Any]:
    """The workload's size, without its documents."""
    return {
        "kind": workload.kind,
        "documents": len(workload.documents),
        "pages": workload.pages,
        "longest": max(document.pages for document in workload.documents),
        "batch": workload.batch,
        "read_workers": workload.read_workers,
        "payload_mib": workload.pages * workload.page_bytes // 2**20,
        "store_mib": workload.store_mib,
        "bound_s": round(workload.bound_s(), 3),
    }


def measured(
    workload: str,
    settings: dict[str, Any],
    systems: Sequence[str],
    rounds: int,
    limit_s: float,
    results: Path,
) -> dict[str, Any]:
    """All rounds, each begun by another system. The file in `results` is written after each run, so
    that none is lost.

    Raises ValueError for an unknown system or setting and ImportError for a missing peer, before
    anything is run.
    """
    found: dict[str, Any] = {
        "name": workload,
        "settings": {key: value for key, value in settings.items() if key != "pdfs"},
        "workload": described(made(workload, settings)),
        "machine": machine(),
        "systems": {system: _about(workload, settings, system) for system in systems},
        "runs": {system: [] for system in systems},
    }
    results.mkdir(parents=True, exist_ok=True)
    for number in range(rounds):
        turn = number % len(systems)
        for system in (*systems[turn:], *systems[:turn]):
            figures = one(workload, settings, system, limit_s)
            found["runs"][system].append(figures)
            print(f"  round {number} {system}: {_in_words(figures)}", flush=True)
            text = json.dumps(found, indent=1)
            (results / f"{workload}.json").write_text(text + "\n")
    return found


def _about(workload: str, settings: dict[str, Any], system: str) -> dict[str, Any]:
    named = parsed(system)
    own = made(workload, {**settings, **named.settings})
    about: str = module_of(named.name).SETTINGS
    return {"about": about, "bound_s": round(own.bound_s(), 3)}


def _in_words(figures: dict[str, Any]) -> str:
    if "error" in figures:
        return f"FAILED, {figures['error']}"
    whole = "" if figures["complete"] else ", OUTPUTS WRONG OR MISSING"
    return (
        f"{figures['wall_s']:.2f} s, first document {figures['first_document_s']:.2f} s, "
        f"tail {figures['tail_s']:.2f} s, others used {figures['others_cores']:.2f} cores{whole}"
    )
