"""Lineage-controlled multi-grain dataflows on Ray, as a Prefect integration.

Declaring Programs is light; `Engine`, `run_local` and `Source` bring Ray and boto3 in when they
are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rayorch_prefect._version import VERSION
from rayorch_prefect.model.failures import BackendFailure, GroupFailure, RecordFailure
from rayorch_prefect.model.members import KeptFailure, Members
from rayorch_prefect.model.outcomes import Failure, Gap, Kind, ParentOutcome
from rayorch_prefect.program import F, Program, program, stage

if TYPE_CHECKING:
    from rayorch_prefect.binding.whole_parents import WholeParent
    from rayorch_prefect.execution.engine import Engine
    from rayorch_prefect.execution.engine_run import Run
    from rayorch_prefect.execution.local import run_local
    from rayorch_prefect.execution.parent import Parent
    from rayorch_prefect.storage.objects import Artifact
    from rayorch_prefect.storage.source import Source

__version__ = VERSION

__all__ = [
    "Artifact",
    "BackendFailure",
    "Engine",
    "F",
    "Failure",
    "Gap",
    "GroupFailure",
    "KeptFailure",
    "Kind",
    "Members",
    "Parent",
    "ParentOutcome",
    "Program",
    "RecordFailure",
    "Run",
    "Source",
    "WholeParent",
    "program",
    "run_local",
    "stage",
]

_LATER = {
    "Engine": "rayorch_prefect.execution.engine",
    "Run": "rayorch_prefect.execution.engine_run",
    "run_local": "rayorch_prefect.execution.local",
    "Parent": "rayorch_prefect.execution.parent",
    "Source": "rayorch_prefect.storage.source",
    "Artifact": "rayorch_prefect.storage.objects",
    "WholeParent": "rayorch_prefect.binding.whole_parents",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
