"""A microbatch together with the fixed point that settles it."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.settling import FixedPoint


@dataclass(frozen=True, slots=True)
class Run:
    """The tables and their one writer."""

    mb: Microbatch
    settle: FixedPoint
