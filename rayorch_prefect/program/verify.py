"""Checks of a whole trace: acyclic, every output reached from the root, no Call in vain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program.demands import shapes
from rayorch_prefect.program.plan import (
    BroadcastOp,
    CallOutputOp,
    CoalesceOp,
    ExpandOp,
    FilterOp,
    ReduceOp,
)
from rayorch_prefect.program.refusal import refuse
from rayorch_prefect.program.tracing import Graph


@dataclass(frozen=True, slots=True)
class Live:
    """What an output derives from, as trace ids."""

    domains: frozenset[int]
    ports: frozenset[int]
    calls: frozenset[int]
    reduces: frozenset[int]


def verify(graph: Graph, outputs: tuple[int, ...]) -> Live:
    """Check the trace and say what of it the outputs need. Raises ProgramError."""
    check_acyclic(graph)
    check_reached(graph, outputs)
    live = find_live(graph, outputs)
    check_calls(graph, live)
    shapes(graph.domains, graph.ports, graph.reduces)
    return live


def reads(graph: Graph, port: int) -> tuple[int, ...]:
    """The Ports that a Port's Items depend on directly."""
    record = graph.ports[port]
    match record.op:
        case CallOutputOp(call=call):
            return graph.calls[call].inputs
        case ExpandOp(source=source):
            return (source,)
        case ReduceOp(reduce=reduce):
            return graph.reduces[reduce].sources
        case FilterOp(source=source, mask=mask):
            return (source, mask)
        case CoalesceOp(sources=sources):
            return sources
        case BroadcastOp(source=source):
            return (source, *graph.domains[record.domain].expands)
        case _:
            return ()


def check_acyclic(graph: Graph) -> None:
    """Refuse a Port that depends on itself."""
    order = TopologicalSorter({port.id: reads(graph, port.id) for port in graph.ports})
    try:
        order.prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1]
        records = [graph.ports[port] for port in cycle]
        steps = " -> ".join(
            f"{port.name!r} (Domain {graph.domains[port.domain].name!r})" for port in records
        )
        refuse(f"the Program has a cycle: {steps}. Feedback is not possible.", records[0].where)


def check_reached(graph: Graph, outputs: tuple[int, ...]) -> None:
    """Refuse an output that does not derive from the source."""
    for output in outputs:
        if 0 not in _closure(graph, [output]):
            port = graph.ports[output]
            refuse(
                f"no path from the root Domain {graph.domains[0].name!r} reaches the output "
                f"{port.name!r} (Domain {graph.domains[port.domain].name!r}).",
                port.where,
            )


def find_live(graph: Graph, outputs: tuple[int, ...]) -> Live:
    """The Ports that outputs depend on, with all siblings of their Calls, reduces and expands."""
    ports = _closure(graph, outputs)
    calls: set[int] = set()
    reduces: set[int] = set()
    domains = {0}
    for port in sorted(ports):
        op = graph.ports[port].op
        domains.add(graph.ports[port].domain)
        if isinstance(op, CallOutputOp):
            calls.add(op.call)
        elif isinstance(op, ReduceOp):
            reduces.add(op.reduce)
    ports.update(port for call in calls for port in graph.calls[call].outputs)
    ports.update(port for reduce in reduces for port in graph.reduces[reduce].results)
    ports.update(port for domain in domains for port in graph.domains[domain].expands)
    ports.add(0)
    return Live(frozenset(domains), frozenset(ports), frozenset(calls), frozenset(reduces))


def check_calls(graph: Graph, live: Live) -> None:
    """Refuse Calls from which no output derives; names them all."""
    dead = [call for call in graph.calls if call.id not in live.calls]
    if not dead:
        return
    lines = [
        f"{call.where}: no output derives from Call {call.used.stage.name} on Domain "
        f"{graph.domains[call.domain].name!r}. Return it, feed it to a Call that is returned, "
        "or leave it out."
        for call in dead
    ]
    raise ProgramError("\n".join(lines))


def _closure(graph: Graph, start: Iterable[int]) -> set[int]:
    found: set[int] = set()
    work = list(start)
    while work:
        port = work.pop()
        if port not in found:
            found.add(port)
            work.extend(reads(graph, port))
    return found
