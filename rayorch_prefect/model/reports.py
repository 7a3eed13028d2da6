"""What a worker says of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rayorch_prefect.model.outcomes import Kind

# The shape of one row's expanded output: the number of its elements or, where the elements are
# taken apart again, a tuple of their shapes.
Shape: TypeAlias = "int | tuple[Any, ...]"


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output of a batch. Its stored values have the slots `first_slot .. first_slot+slots-1`:
    one a row, or with `shapes` one an element at the deepest level, row by row.
    `mask` holds a byte (0 or 1) a stored value where the Plan reads this output as a mask.
    `sizes` are (values, bytes, parted) of consecutive ones: bytes that go only with the last of
    them or, where `parted`, little by little; without it their bytes are not known."""

    first_slot: int
    slots: int
    shapes: tuple[Shape, ...] | None = None
    mask: bytes | None = None
    sizes: tuple[tuple[int, int, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row that has no value. `kind` is None for an attempt that failed (an exception), by
    `backend` because a service behind the stage was down."""

    kind: Kind | None
    type: str
    message: str
    backend: bool = False


@dataclass(frozen=True, slots=True)
class RowsReport:
    """The stage returned. `failures` maps rows (from 0) to what was in their place; `skipped`
    rows were not computed, as the worker knew their group to be barred."""

    rows: int
    outputs: tuple[OutputReport, ...]
    failures: Mapping[int, RowFailure] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The call raised an exception that is charged to no row in particular; by `backend` because
    a service behind the stage was down."""

    type: str
    message: str
    backend: bool = False


@dataclass(frozen=True, slots=True)
class ContractBreach:
    """The call returned something that does not fit the Plan; by `row` of the batch, if one row
    is at fault."""

    expected: str
    received: str
    row: int | None = None


Report: TypeAlias = RowsReport | AttemptFailed | ContractBreach
