"""Source rows as the scheduler needs to know them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch_prefect.errors import ObjectStoreFull, UsageError
from rayorch_prefect.execution.batch import row_ends
from rayorch_prefect.execution.codec import EncodedChunk, encode
from rayorch_prefect.execution.messages import CallContract
from rayorch_prefect.execution.stage_runner import Column, check_value, describe
from rayorch_prefect.model.reports import ContractBreach, Shape
from rayorch_prefect.program.plan import Plan


@dataclass(frozen=True, slots=True)
class DescribedRows:
    """Values of the source Port, a chunk each, as each is released by itself; `invalid` rows
    hold nothing that fits the Plan."""

    chunks: tuple[EncodedChunk, ...]
    shapes: tuple[Shape, ...] | None
    mask: bytes | None
    invalid: tuple[tuple[int, str], ...]

    def row_of(self, chunk: int) -> int:
        """The row that a chunk is of."""
        return chunk if self.shapes is None else bisect_right(row_ends(self.shapes), chunk)


def describe_rows(plan: Plan, rows: Sequence[Any]) -> DescribedRows:
    """Take rows apart as far as the Program expands its source Port itself.

    Raises UsageError for a row that cannot be pickled.
    """
    column, invalid = _taken_apart(plan, rows)
    shapes = None if column.shapes is None else tuple(column.shapes)
    mask = None if column.mask is None else bytes(column.mask)
    ends = None if shapes is None else row_ends(shapes)
    chunks = tuple(
        _encoded(value, index if ends is None else bisect_right(ends, index))
        for index, value in enumerate(column.values)
    )
    return DescribedRows(chunks, shapes, mask, tuple(invalid))


def _taken_apart(plan: Plan, rows: Sequence[Any]) -> tuple[Column, list[tuple[int, str]]]:
    contract = CallContract(
        plan.domains[0].name, (plan.source_list_depth,), (plan.source_is_mask,), 1
    )
    column = Column.of(contract, 0)
    invalid: list[tuple[int, str]] = []
    for row, value in enumerate(rows):
        breach = check_value(column, value, contract.list_depths[0], row)
        if isinstance(breach, ContractBreach):
            invalid.append((row, f"{breach.received} instead of {breach.expected} in row {row}"))
    return column, invalid


def stored_rows(
    described: DescribedRows, store: Callable[[EncodedChunk], Any]
) -> tuple[list[Any], dict[int, str]]:
    """The data of each source value, and why rows were refused that the object store did not
    take."""
    stored: list[Any] = []
    refused: dict[int, str] = {}
    for index, chunk in enumerate(described.chunks):
        try:
            data = store(chunk)
        except ObjectStoreFull as error:
            # The others go on; such a row is refused, and its values are let go unread.
            data = b""
            said = f"{chunk.size} bytes that could not be stored: {error}"
            refused[described.row_of(index)] = said
        stored.append(data)
    return stored, refused


@dataclass(slots=True, eq=False)
class SourceRows:
    """The rows that a microbatch was made of, to have a source value again."""

    plan: Plan
    rows: Sequence[Any]

    def chunk(self, index: int) -> EncodedChunk:
        """Value `index` of the source Port."""
        return _encoded(_taken_apart(self.plan, self.rows)[0].values[index], index)


def _encoded(value: Any, row: int) -> EncodedChunk:
    try:
        return encode([value])
    except Exception as error:
        raise UsageError(
            f"source row {row} cannot be pickled: {describe(value)}: {type(error).__name__}: "
            f"{error}; give rows of plain data, and let a stage open what they name"
        ) from error
