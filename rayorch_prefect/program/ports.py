"""The handle that a Program's function gets and passes on while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from rayorch_prefect.program.refusal import refuse

if TYPE_CHECKING:
    from rayorch_prefect.program.tracing import Graph


class Port:
    """A value slot on a Domain, at trace time. It stands for values that do not exist yet, so it
    can only be passed to stages and to `F`; looking into it raises ProgramError."""

    __slots__ = ("domain", "graph", "id", "name")

    def __init__(self, graph: Graph, id: int, domain: int, name: str) -> None:
        self.graph = graph
        self.id = id
        self.domain = domain
        self.name = name

    def __bool__(self) -> bool:
        self._refuse("decides on", "F.filter(port, mask) keeps rows by a boolean Port")

    def __iter__(self) -> Iterator[Port]:
        self._refuse("loops over", "F.expand(port, domain=name) takes lists apart")

    def __len__(self) -> int:
        self._refuse("takes the length of", "let a stage count, or F.reduce and count there")

    def __getitem__(self, key: object) -> Port:
        self._refuse("indexes", "let a stage take the element, or declare outputs=k on the stage")

    def __contains__(self, item: object) -> bool:
        self._refuse("searches", "let a stage search, and F.filter by its boolean output")

    def __reduce__(self) -> NoReturn:
        self._refuse("pickles", "Ports are wired by calling stages with them")

    def __repr__(self) -> str:
        return f"<Port {self.name!r} on Domain {self.graph.domains[self.domain].name!r}>"

    def _refuse(self, deed: str, instead: str) -> NoReturn:
        domain = self.graph.domains[self.domain].name
        refuse(
            f"the Program {deed} Port {self.name!r} (Domain {domain!r}), but a Program only "
            f"declares: its values do not exist yet. Instead: {instead}."
        )
