"""A chain as a Program's Plan: what the real scheduler is given."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.program import F, program, stage
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.simulation.chain import Chain, Stage


class Absent:
    """A stage that is never called."""

    def __call__(self, rows: Any) -> Any:
        """Stages are simulated."""
        raise NotImplementedError


def plan_of(chain: Chain) -> Plan:
    """The compiled Plan of a chain; its Calls are the chain's stages, in order."""

    def simulated(source: Any) -> Any:
        port = _through(chain.before, source)
        if not chain.expands:
            return port
        if chain.ranges:
            port = _through(chain.ranges, F.expand(port, domain="range"))
        port = F.reduce(_through(chain.pages, F.expand(port, domain="page")))
        return _through(chain.after, F.reduce(port) if chain.ranges else port)

    return program(version="1")(simulated).plan


def _through(stages: tuple[Stage, ...], port: Any) -> Any:
    for one in stages:
        options: dict[str, Any] = {
            "replicas": one.workers,
            "batch_size": 1 if one.whole else one.batch,
            "rowwise": one.rowwise,
            "linger_s": one.linger_s,
        }
        port = stage(type(one.name, (Absent,), {}), **options)()(port)
    return port
