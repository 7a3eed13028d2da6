"""A row's children, handed over in chunks while their stage still makes them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from rayorch_prefect.execution.bars import Gate
from rayorch_prefect.execution.messages import BatchMessage, CallContract
from rayorch_prefect.execution.stage_runner import (
    FAULTS,
    Breach,
    Column,
    Results,
    StageRunner,
    attempt_of,
    child_of,
    end_of,
    flatten,
    typed,
)
from rayorch_prefect.model.failures import TypedFailure
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, RowFailure

# A chunk leaves with the first child of a batch, and then when one of these is reached; a child
# waits for its next sibling at most, as nothing else is done while that is made.
LONGEST_WAIT_S = 0.02
MOST_BYTES = 4 * 1024 * 1024

# Whether what has been made, of so many bytes, leaves now.
Due = Callable[[int], bool]
# (row, ordinal of the first, children)
Made = tuple[int, int, list[Any]]


class Pace:
    """The usual `Due` of one batch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def __call__(self, size: int) -> bool:
        now = self._clock()
        since = None if self._last is None else now - self._last
        due = since is None or since >= LONGEST_WAIT_S or size >= MOST_BYTES
        if due:
            self._last = now
        return due


class RowsInChunks:
    """One batch, row by row. When `run` has ended, `failures` and `skipped` say which rows did
    not end well, and `waiting` holds the children that have not left."""

    def __init__(
        self,
        runner: StageRunner,
        contract: CallContract,
        message: BatchMessage,
        gate: Gate,
        due: Due,
    ) -> None:
        self.failures: dict[int, RowFailure] = {}
        self.skipped: list[int] = []
        self.waiting: list[Made] = []
        self._outputs = len(contract.list_depths)
        self._runner = runner
        self._gate = gate
        self._due = due
        self._rows = message.rows
        self._taken = dict(message.taken)
        self._size = 0

    def run(self, columns: Sequence[list[Any]]) -> Iterator[list[Made]]:
        """What leaves, each time that something does. Raises Breach."""
        for row in range(self._rows):
            if self._gate.skips(row):
                self.skipped.append(row)
                continue
            self._gate.starts(row)
            yield from self._row(row, [column[row] for column in columns])
            if row in self.failures or row in self.skipped:
                self.waiting = [made for made in self.waiting if made[0] != row]
            if row in self.failures and self.failures[row].kind is Kind.GROUP_FAILURE:
                self._gate.failed(row)

    def _row(self, row: int, values: Sequence[Any]) -> Iterator[list[Made]]:
        taken = self._taken.get(row, 0)
        try:
            children = self._runner.children(values)
        except FAULTS as error:
            self.failures[row] = attempt_of(error)
            return
        for ordinal in itertools.count():
            found = self._next(children, row)
            if found is None:
                if row not in self.failures and ordinal < taken:
                    raise Breach(
                        f"at least the {taken} children that an earlier try gave", f"{ordinal}", row
                    )
                return
            if ordinal >= taken:
                self._add(row, ordinal, child_of(found[0], self._outputs, row))
            if self.waiting and self._due(self._size):
                yield self.take()
            if self._gate.skips(row):
                children.close()
                self.skipped.append(row)
                return

    def _next(self, children: Generator[Any], row: int) -> tuple[Any] | None:
        """The next child, or None and perhaps a failure of the row."""
        try:
            return (self._runner.next_child(children),)
        except StopIteration as end:
            failure = end_of(end, row)
            if failure is not None:
                self.failures[row] = typed(failure)
        except TypedFailure as failure:
            self.failures[row] = typed(failure)
        except FAULTS as error:
            self.failures[row] = attempt_of(error)
        return None

    def _add(self, row: int, ordinal: int, child: Any) -> None:
        if not self.waiting or self.waiting[-1][0] != row:
            self.waiting.append((row, ordinal, []))
        self.waiting[-1][2].append(child)
        self._size += _weight(child)

    def take(self) -> list[Made]:
        """All that waits, which does so no more."""
        taken, self.waiting, self._size = self.waiting, [], 0
        return taken


def columns_of(contract: CallContract, made: Sequence[Any], row: int) -> list[Column]:
    """Children of one row as one column an output. Raises Breach."""
    found: list[Column] = []
    outputs = len(contract.list_depths)
    for index, depth in enumerate(contract.list_depths):
        column = Column.of(contract, index)
        values = made if outputs == 1 else [child[index] for child in made]
        assert column.shapes is not None
        column.shapes.append(flatten(column, list(values), depth, row))
        found.append(column)
    return found


def children_again(
    runner: StageRunner, contract: CallContract, message: BatchMessage, columns: Sequence[list[Any]]
) -> Results | AttemptFailed | ContractBreach:
    """Make children of the batch's one row again, in the pieces in which they left before: each
    stands like a row of its own. What would come after them is not made."""
    ((_, skip),) = message.taken or ((0, 0),)
    failures: dict[int, RowFailure] = {}
    whole = [Column.of(contract, index) for index in range(len(contract.list_depths))]
    try:
        children = runner.children([column[0] for column in columns])
        for _ in range(skip):
            runner.next_child(children)
        for n in message.pieces:
            _append_piece(whole, contract, [runner.next_child(children) for _ in range(n)])
        children.close()
    except Breach as broken:
        return broken.breach
    except TypedFailure as failure:
        failures[0] = typed(failure)
    except StopIteration:
        pass  # it is noticed that there are fewer
    except FAULTS as error:
        failed = attempt_of(error)
        return AttemptFailed(failed.type, failed.message)
    return Results(whole, failures, [])


def _append_piece(whole: list[Column], contract: CallContract, made: list[Any]) -> None:
    checked = [child_of(child, len(contract.list_depths), 0) for child in made]
    for column, piece in zip(whole, columns_of(contract, checked, 0), strict=True):
        column.values += piece.values
        assert column.shapes is not None
        assert piece.shapes is not None
        column.shapes += piece.shapes
        if column.mask is not None:
            column.mask += piece.mask or b""


def _weight(child: Any) -> int:
    """The bytes of a child, as far as they can be told at a glance."""
    if isinstance(child, tuple):
        return sum(map(_weight, child))
    if isinstance(child, bytes | bytearray | str):
        return len(child)
    size = getattr(child, "nbytes", 0)
    return size if isinstance(size, int) else 0
