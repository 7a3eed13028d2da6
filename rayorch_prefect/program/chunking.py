"""Which stages yield their children, and which Domains so get their members in chunks."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

from rayorch_prefect.program.plan import Domain, ExpandOp, Port
from rayorch_prefect.program.targets import Target


def yields(target: Target) -> bool:
    """Whether a stage's call is a generator, sync or async."""
    call = cast(Any, target).__call__ if isinstance(target, type) else target
    return inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)


def chunked_domains(
    domains: Sequence[Domain], ports: Sequence[Port], outputs: tuple[int, ...]
) -> tuple[int, ...]:
    """The Domains made straight from these outputs of one Call.

    What a filter or coalesce lies between is expanded when the whole list is there: before that
    it has no outcome.
    """
    return tuple(
        domain.id
        for domain in domains
        if domain.expands and all(_source(ports[one]) in outputs for one in domain.expands)
    )


def _source(port: Port) -> int:
    assert isinstance(port.op, ExpandOp)
    return port.op.source
