"""A completed parent, as the owner of a run gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rayorch_prefect.errors import ParentNotCompleted
from rayorch_prefect.execution.batch import Fetch, decoded
from rayorch_prefect.execution.blocks import Block
from rayorch_prefect.execution.codec import rows_of
from rayorch_prefect.model.outcomes import Failure, Gap, ParentOutcome
from rayorch_prefect.model.parts import Parts


@dataclass(frozen=True, slots=True)
class Payload:
    """A parent's outputs as addresses: picklable, and small where the values are large.

    Sent to another Ray process it keeps the values alive and is read there by `value(fetch)`.
    `blocks` stay behind: they know how `chunks` can be made again.
    """

    outputs: tuple[Parts, ...]
    chunks: tuple[Any, ...]
    single: bool
    blocks: tuple[Block, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Payload, (self.outputs, self.chunks, self.single)

    def renewed(self) -> Payload:
        """The same with the data that its blocks have now."""
        return replace(self, chunks=tuple(block.data for block in self.blocks))

    def value(self, fetch: Fetch) -> Any:
        """The output; a tuple of them where the Program has several (None for a DROPPED one).

        Raises LostValues, with positions among `references(chunks)`, if a node died with them.
        """
        chunks = decoded(self.chunks, fetch)
        values = [(rows_of(parts, chunks) or [None])[0] for parts in self.outputs]
        return values[0] if self.single else tuple(values)


@dataclass(frozen=True, slots=True)
class Parent:
    """One source row at its end. `index` is its place in the run, `row` what was submitted.

    `children` counts the Entities below it, `attempts` the most tries that one of its Grains
    took, `started` and `finished` are Unix times in seconds.
    """

    index: int
    row: Any
    key: str
    outcome: ParentOutcome
    cause: Failure | None
    gaps: tuple[Gap, ...]
    children: int
    attempts: int
    started: float
    finished: float
    payload: Payload | None = field(repr=False)
    _fetch: Fetch = field(repr=False)

    def value(self) -> Any:
        """The Program's output for this parent.

        Raises ParentNotCompleted if it is FAILED or DROPPED.
        """
        return self.require_payload().value(self._fetch)

    def require_payload(self) -> Payload:
        """The outputs' addresses. Raises ParentNotCompleted if it is FAILED or DROPPED."""
        if self.payload is None:
            why = f": {self.cause}" if self.cause else ""
            raise ParentNotCompleted(f"{self.key} is {self.outcome.value} and has no value{why}")
        return self.payload


def no_references(refs: Sequence[Any]) -> Sequence[Any]:
    """The `Fetch` of a process without stored objects."""
    if refs:
        raise ParentNotCompleted("the values lie in an object store that is not connected")
    return ()


OnParent = Callable[["Parent | BaseException"], None]
