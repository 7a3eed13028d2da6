"""One run of one system, in a process of its own: `python -m benchmarks.one SPEC`."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.calls import Job
from benchmarks.workloads import made

MODULES = {
    "ours": "ours",
    "loop": "plain_loop",
    "rayorch": "rayorch_peer",
    "raydata": "ray_data",
    "daft": "daft_peer",
    "pool": "process_pool",
    "prefect": "prefect_tasks",
    "sequential": "one_process",
    "engine": "engine_publishing",
    "night": "night",
}


@dataclass(frozen=True)
class Named:
    """A system as it is named on the command line: NAME[:option=value...][@setting=value...].

    Options go to the system's `run`, settings to the workload.
    """

    name: str
    options: dict[str, Any]
    settings: dict[str, Any]


def parsed(text: str) -> Named:
    """Raises ValueError for an unknown system."""
    system, *settings = text.split("@")
    name, *options = system.split(":")
    if name not in MODULES:
        raise ValueError(f"there is no system {name}; expected one of {', '.join(MODULES)}")
    return Named(name, pairs(options), pairs(settings))


def pairs(items: list[str]) -> dict[str, Any]:
    """key=value, the value as JSON or else as text. Raises ValueError for an item without `=`."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{item} is not of the form key=value")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def module_of(name: str) -> Any:
    """Raises ImportError where the peer is not installed."""
    return importlib.import_module(f"benchmarks.systems.{MODULES[name]}")


def main() -> None:
    """SPEC is JSON: workload, settings, system, folder."""
    spec = json.loads(sys.argv[1])
    system, folder = parsed(spec["system"]), Path(spec["folder"])
    workload = made(spec["workload"], {**spec["settings"], **system.settings})
    module = module_of(system.name)
    calls = folder / "calls"
    calls.mkdir()
    job = Job(workload, str(calls), workload.workers)
    if hasattr(module, "awaited"):
        known = {k: v for k, v in system.options.items() if k == "runner"}
        job = Job(workload, str(calls), module.awaited(job, **known))
    figures = module.run(job, str(folder / "r"), **system.options)
    (folder / "figures.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
