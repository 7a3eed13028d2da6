"""The graph that a trace writes: the Plan's own records, not yet pruned or numbered anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rayorch_prefect.program import plan
from rayorch_prefect.program.plan import BroadcastOp, Op, SourceOp, Where
from rayorch_prefect.program.ports import Port
from rayorch_prefect.program.refusal import refuse, shown

if TYPE_CHECKING:
    from rayorch_prefect.program.stages import ConfiguredStage

ROOT_NAME = "source"


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One use of a configured stage; `inputs` and `outputs` are Port ids of the trace."""

    id: int
    used: ConfiguredStage
    domain: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    where: Where


class Graph:
    """One trace of one Program. Ids are dense and in the order of the trace."""

    def __init__(self, program: str, where: Where) -> None:
        self.program = program
        self.where = where
        self.domains = [plan.Domain(0, ROOT_NAME, None, 0)]
        self.ports: list[plan.Port] = []
        self.calls: list[TracedCall] = []
        self.reduces: list[plan.Reduce] = []
        self._broadcasts: dict[tuple[int, int], Port] = {}
        self.source = self.add_port(0, SourceOp(), ROOT_NAME, where)

    def add_port(self, domain: int, op: Op, name: str, where: Where) -> Port:
        """A new Port of the trace."""
        record = plan.Port(len(self.ports), domain, op, name, where)
        self.ports.append(record)
        return Port(self, record.id, domain, name)

    def add_domain(self, name: str, parent: int, expands: tuple[int, ...]) -> int:
        """A new child Domain of `parent`, whose members the Ports `expands` make."""
        depth = self.domains[parent].depth + 1
        self.domains.append(plan.Domain(len(self.domains), name, parent, depth, expands))
        return len(self.domains) - 1

    def admit(self, value: object, what: str) -> Port:
        """`value` as a Port of this trace, or a refusal that names `what` it should be."""
        if not isinstance(value, Port):
            hint = (
                " Constants are constructor arguments of the stage, `Stage(value)(port)`."
                if not isinstance(value, (list, tuple))
                else " Pass several Ports one by one, not in a list or tuple."
            )
            refuse(f"{what} must be a Port, not {shown(value)}.{hint}")
        if value.graph is not self:
            refuse(
                f"{what} is Port {value.name!r} (Domain {value.graph.name_of(value)!r}) of another "
                f"Program: it belongs to a trace of {value.graph.program!r}, this one is "
                f"{self.program!r}. Use only Ports that derive from this Program's own parameter."
            )
        return value

    def name_of(self, port: Port) -> str:
        """The name of the Port's Domain."""
        return self.domains[port.domain].name

    def ancestors(self, domain: int) -> list[int]:
        """The Domain itself, its parent, and so on up to the root."""
        line = [domain]
        while (parent := self.domains[line[-1]].parent) is not None:
            line.append(parent)
        return line

    def same_domain(self, what: str, ports: Sequence[Port]) -> int:
        """The one Domain of all `ports`, or a refusal that names both and a way out."""
        first = ports[0]
        for position, port in enumerate(ports):
            if port.domain != first.domain:
                refuse(
                    f"{what} joins Ports of two Domains: the first, {first.name!r}, is on Domain "
                    f"{self.name_of(first)!r}, number {position + 1}, {port.name!r}, on Domain "
                    f"{self.name_of(port)!r}. {self._way_out(first, port)}"
                )
        return first.domain

    def broadcast(self, port: Port, domain: int, where: Where) -> Port:
        """`port` seen on a descendant Domain: one hidden Port a level, made once."""
        line = self.ancestors(domain)
        for level in reversed(line[: line.index(port.domain)]):
            key = (port.id, level)
            if key not in self._broadcasts:
                name = f"broadcast {port.name.removeprefix('broadcast ')}"
                self._broadcasts[key] = self.add_port(level, BroadcastOp(port.id), name, where)
            port = self._broadcasts[key]
        return port

    def _way_out(self, a: Port, b: Port) -> str:
        high, low = sorted((a, b), key=lambda port: self.domains[port.domain].depth)
        if high.domain in self.ancestors(low.domain):
            return (
                f"Either F.broadcast({high.name!r}, like={low.name!r}) and join on Domain "
                f"{self.name_of(low)!r}, or F.reduce({low.name!r}) up to Domain "
                f"{self.name_of(high)!r} and join there."
            )
        line = self.ancestors(a.domain)
        common = next(domain for domain in self.ancestors(b.domain) if domain in line)
        return f"F.reduce both up to Domain {self.domains[common].name!r} and join there."


_current: ContextVar[Graph | None] = ContextVar("rayorch_prefect_trace", default=None)


def is_tracing() -> bool:
    """Whether a Program is traced in this context."""
    return _current.get() is not None


def current(what: str) -> Graph:
    """The graph being traced, or a refusal that names `what` was used outside."""
    graph = _current.get()
    if graph is None:
        refuse(
            f"{what} is used outside a Program: Ports exist only while a function decorated "
            "with @program is traced."
        )
    return graph


def trace(name: str, function: Callable[[Port], object], where: Where) -> tuple[Graph, object]:
    """Call the Program's function with the source Port; its own exceptions pass through."""
    graph = Graph(name, where)
    with _tracing(graph):
        return graph, function(graph.source)


@contextmanager
def _tracing(graph: Graph) -> Iterator[None]:
    token = _current.set(graph)
    try:
        yield
    finally:
        _current.reset(token)
