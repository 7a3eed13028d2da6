"""What expands and masks demand of the values that Calls and the source hand over.

A demand says that `depth` levels of lists of a Port's value are taken apart and, for a mask, that
the elements below them are boolean. It is followed back through structure operations to the
Calls' outputs and the source, where the worker checks it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    Domain,
    ExpandOp,
    FilterOp,
    OnFailure,
    Port,
    Reduce,
    ReduceOp,
    SourceOp,
    Where,
)
from rayorch_prefect.program.refusal import refuse


@dataclass(frozen=True, slots=True)
class _Demand:
    depth: int
    mask: bool
    asked: str
    where: Where


@dataclass(frozen=True, slots=True)
class Shape:
    """What is checked of one origin's value: levels of lists, and booleans at the deepest."""

    depth: int = 0
    mask: bool = False


Shapes: TypeAlias = dict[int, Shape]


def shapes(domains: Sequence[Domain], ports: Sequence[Port], reduces: Sequence[Reduce]) -> Shapes:
    """The Shape of each Call output and of the source that is demanded any, by Port id.

    Raises ProgramError where a list would have to be a boolean, or where children could be the
    failures that a reduce keeps. `ports[i].id == i`, and so for the others.
    """
    found: dict[int, list[_Demand]] = {}
    seen: set[tuple[int, int, bool]] = set()
    work = list(_asked(ports))
    while work:
        at, demand = work.pop()
        key = (at, demand.depth, demand.mask)
        if key in seen or not (demand.depth or demand.mask):
            continue
        seen.add(key)
        if isinstance(ports[at].op, (CallOutputOp, SourceOp)):
            found.setdefault(at, []).append(demand)
        else:
            work.extend(_followed(domains, ports[at], reduces, demand))
    return {at: _combined(domains, ports[at], demands) for at, demands in sorted(found.items())}


def _asked(ports: Sequence[Port]) -> Iterator[tuple[int, _Demand]]:
    for port in ports:
        if isinstance(port.op, ExpandOp):
            yield port.op.source, _Demand(1, False, "F.expand", port.where)
        elif isinstance(port.op, FilterOp):
            yield port.op.mask, _Demand(0, True, "F.filter", port.where)


def _followed(
    domains: Sequence[Domain], port: Port, reduces: Sequence[Reduce], demand: _Demand
) -> Iterator[tuple[int, _Demand]]:
    op, depth = port.op, demand.depth
    if isinstance(op, ReduceOp):
        reduce = reduces[op.reduce]
        _check_reduced(domains, port, reduce, demand)
        yield reduce.sources[op.index], _moved(demand, depth - 1)
    elif isinstance(op, ExpandOp):
        yield op.source, _moved(demand, depth + 1)
    elif isinstance(op, CoalesceOp):
        for source in op.sources:
            yield source, demand
    elif isinstance(op, (FilterOp, BroadcastOp)):
        yield op.source, demand


def _moved(demand: _Demand, depth: int) -> _Demand:
    return _Demand(depth, demand.mask, demand.asked, demand.where)


def _check_reduced(domains: Sequence[Domain], port: Port, reduce: Reduce, demand: _Demand) -> None:
    name = domains[reduce.domain].name
    if demand.depth == 0:
        refuse(
            f"F.filter on Domain {name!r}: the mask {port.name!r} is the list that a reduce made, "
            "and a list is not a boolean. Let a stage decide from that list.",
            demand.where,
        )
    if reduce.on_failure is OnFailure.KEEP:
        refuse(
            f"F.expand of {port.name!r} (Domain {name!r}): its reduce at {reduce.where} says "
            "on_failure='keep', so the children could be failures. Use 'skip', or let a stage "
            "turn that list into values first.",
            demand.where,
        )


def _combined(domains: Sequence[Domain], port: Port, demands: list[_Demand]) -> Shape:
    deepest = max(demands, key=lambda demand: demand.depth)
    for demand in demands:
        if demand.mask and demand.depth < deepest.depth:
            refuse(
                f"Port {port.name!r} (Domain {domains[port.domain].name!r}, {port.where}) is a "
                f"mask of the F.filter at {demand.where}, and {deepest.asked} takes the same "
                "value apart as a list: a list is not a boolean. Give the mask its own output.",
                deepest.where,
            )
    return Shape(deepest.depth, any(demand.mask for demand in demands))
