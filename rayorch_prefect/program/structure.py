"""`F`: the structure operations. They are settled at compile time and never occupy a worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rayorch_prefect.program.plan import (
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    OnFailure,
    Reduce,
    ReduceOp,
)
from rayorch_prefect.program.ports import Port
from rayorch_prefect.program.refusal import refuse, shown, user_where
from rayorch_prefect.program.tracing import Graph, current


class F:
    """Structure operations on Ports. All raise ProgramError, with file and line, if refused."""

    @staticmethod
    def expand(port: Port, *, domain: str) -> Port:
        """The elements of a list-valued Port, on a new child Domain called `domain`."""
        graph = current("F.expand")
        return _expand(graph, "F.expand", [graph.admit(port, "F.expand: port")], domain)[0]

    @staticmethod
    def expand_aligned(*ports: Port, domain: str) -> tuple[Port, ...]:
        """The elements of several outputs of one Call, on one new child Domain. Their lists must
        have equal lengths in each row; a row where they differ is a ContractError."""
        graph = current("F.expand_aligned")
        admitted = _admit_all(graph, "F.expand_aligned", ports)
        _check_one_call(graph, admitted)
        return _expand(graph, "F.expand_aligned", admitted, domain)

    @staticmethod
    def reduce(
        port: Port, *, on_failure: str = "fail", max_missing: int | float | None = None
    ) -> Port:
        """The ordered list of each direct parent's members, on the parent Domain.

        `on_failure`: "fail", "skip" (leave failed members out) or "keep" (a KeptFailure in their
        place). `max_missing` goes with "skip": a count (int) or a share of the members (float in
        0..1) above which the reduce fails after all.
        """
        graph = current("F.reduce")
        admitted = [graph.admit(port, "F.reduce: port")]
        return _reduce(graph, "F.reduce", admitted, on_failure, max_missing)[0]

    @staticmethod
    def reduce_aligned(
        *ports: Port, on_failure: str = "fail", max_missing: int | float | None = None
    ) -> tuple[Port, ...]:
        """As `reduce`, for several Ports of one Domain: the same members in all lists."""
        graph = current("F.reduce_aligned")
        admitted = _admit_all(graph, "F.reduce_aligned", ports)
        graph.same_domain("F.reduce_aligned", admitted)
        return _reduce(graph, "F.reduce_aligned", admitted, on_failure, max_missing)

    @staticmethod
    def filter(port: Port, mask: Port) -> Port:
        """`port` where the boolean Port `mask` of the same Domain is true; DROPPED elsewhere."""
        graph = current("F.filter")
        source, by = graph.admit(port, "F.filter: port"), graph.admit(mask, "F.filter: mask")
        domain = graph.same_domain("F.filter", [source, by])
        name = f"filter {source.name}"
        return graph.add_port(domain, FilterOp(source.id, by.id), name, user_where())

    @staticmethod
    def coalesce(*ports: Port) -> Port:
        """The first PRESENT of several Ports of one Domain, in order."""
        graph = current("F.coalesce")
        sources = _admit_all(graph, "F.coalesce", ports)
        domain = graph.same_domain("F.coalesce", sources)
        name = f"coalesce {', '.join(port.name for port in sources)}"
        op = CoalesceOp(tuple(port.id for port in sources))
        return graph.add_port(domain, op, name, user_where())

    @staticmethod
    def broadcast(port: Port, *, like: Port) -> Port:
        """`port`'s value at each descendant on the Domain of `like`. On its own Domain: itself."""
        graph = current("F.broadcast")
        source = graph.admit(port, "F.broadcast: port")
        target = graph.admit(like, "F.broadcast: like")
        if source.domain not in graph.ancestors(target.domain):
            refuse(
                f"F.broadcast goes down to a descendant Domain, but Domain "
                f"{graph.name_of(target)!r} (of like={target.name!r}) does not lie below Domain "
                f"{graph.name_of(source)!r} (of {source.name!r}). F.reduce goes up."
            )
        return graph.broadcast(source, target.domain, user_where())


def _admit_all(graph: Graph, what: str, ports: Sequence[Port]) -> list[Port]:
    if not ports:
        refuse(f"{what} needs at least one Port.")
    return [
        graph.admit(port, f"{what}: argument {position}") for position, port in enumerate(ports, 1)
    ]


def _expand(graph: Graph, what: str, sources: list[Port], name: Any) -> tuple[Port, ...]:
    parent = graph.name_of(sources[0])
    if not isinstance(name, str) or not name.strip():
        refuse(f"{what} on Domain {parent!r}: domain must be a name, not {shown(name)}.")
    if any(domain.name == name for domain in graph.domains):
        refuse(
            f"{what} on Domain {parent!r}: there is a Domain {name!r} already, and each expand "
            "makes a new one. Choose another name; to expand several outputs of one Call "
            f"together, use F.expand_aligned(a, b, domain={name!r})."
        )
    first, where = len(graph.ports), user_where()
    expands = tuple(range(first, first + len(sources)))
    domain = graph.add_domain(name, sources[0].domain, expands)
    text = f"expand {name}"
    names = [text] if len(sources) == 1 else [f"{text}[{i}]" for i in range(len(sources))]
    return tuple(
        graph.add_port(domain, ExpandOp(source.id), text, where)
        for source, text in zip(sources, names, strict=True)
    )


def _check_one_call(graph: Graph, ports: list[Port]) -> None:
    graph.same_domain("F.expand_aligned", ports)
    ops = [graph.ports[port.id].op for port in ports]
    calls = {op.call if isinstance(op, CallOutputOp) else None for op in ops}
    if None in calls or len(calls) > 1:
        names = ", ".join(repr(port.name) for port in ports)
        refuse(
            f"F.expand_aligned on Domain {graph.name_of(ports[0])!r} takes the outputs of one "
            f"Call, since only one Call can promise lists of equal lengths; these are not: "
            f"{names}. Declare outputs={len(ports)} on one stage, or use F.expand for each."
        )


def _reduce(
    graph: Graph, what: str, sources: list[Port], on_failure: Any, max_missing: Any
) -> tuple[Port, ...]:
    child = graph.domains[sources[0].domain]
    if child.parent is None:
        refuse(
            f"{what} has no matching expand: Port {sources[0].name!r} is on the root Domain "
            f"{child.name!r}, which no F.expand made."
        )
    way = _way(what, child.name, on_failure)
    _check_max_missing(what, child.name, way, max_missing)
    where, reduce, first = user_where(), len(graph.reduces), len(graph.ports)
    results = tuple(
        graph.add_port(child.parent, ReduceOp(reduce, index), f"reduce {port.name}", where)
        for index, port in enumerate(sources)
    )
    graph.reduces.append(
        Reduce(
            id=reduce,
            domain=child.parent,
            child_domain=child.id,
            sources=tuple(port.id for port in sources),
            results=tuple(range(first, first + len(sources))),
            on_failure=way,
            max_missing=max_missing,
            where=where,
        )
    )
    return results


def _way(what: str, domain: str, on_failure: Any) -> OnFailure:
    try:
        return OnFailure(on_failure)
    except ValueError:
        known = ", ".join(repr(way.value) for way in OnFailure)
        refuse(f"{what} of Domain {domain!r}: on_failure is one of {known}, not {on_failure!r}.")


def _check_max_missing(what: str, domain: str, way: OnFailure, limit: Any) -> None:
    if limit is None:
        return
    here = f"{what} of Domain {domain!r}: max_missing"
    if way is not OnFailure.SKIP:
        refuse(f"{here} goes with on_failure='skip', not {way.value!r}.")
    right = "a count of members (int, at least 0) or a share of them (float, 0.0 to 1.0)"
    if isinstance(limit, bool) or not isinstance(limit, (int, float)):
        refuse(f"{here} must be {right}, not {shown(limit)}.")
    if math.isnan(limit) or limit < 0 or (isinstance(limit, float) and limit > 1):
        refuse(f"{here} must be {right}, not {shown(limit)}.")
