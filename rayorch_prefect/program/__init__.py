"""Declaring Programs: trace -> graph -> verify -> lower -> Plan -> explain. Pure; runs once."""

from rayorch_prefect.program.declare import Program, program
from rayorch_prefect.program.explain import explain
from rayorch_prefect.program.options import StageOptions
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.program.ports import Port
from rayorch_prefect.program.stages import ClassStage, ConfiguredStage, FunctionStage, Stage, stage
from rayorch_prefect.program.structure import F

__all__ = [
    "ClassStage",
    "ConfiguredStage",
    "F",
    "FunctionStage",
    "Plan",
    "Port",
    "Program",
    "Stage",
    "StageOptions",
    "explain",
    "program",
    "stage",
]
