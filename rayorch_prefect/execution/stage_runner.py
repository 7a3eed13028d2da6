"""One stage in one worker: builds it, calls it, and holds its results against the contract."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from rayorch_prefect.execution import full_disk
from rayorch_prefect.execution.backend_failures import is_backend_failure
from rayorch_prefect.execution.bars import Gate
from rayorch_prefect.execution.memory import MemoryLimit
from rayorch_prefect.execution.messages import CallContract
from rayorch_prefect.execution.plain_text import LONGEST_MESSAGE, plain_text
from rayorch_prefect.model.failures import GroupFailure, TypedFailure
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, RowFailure, Shape
from rayorch_prefect.program.targets import StageTarget
from rayorch_prefect.replay.redaction import redaction

LONGEST_TYPE = 100

# What user code may raise without ending its worker.
FAULTS = (Exception, SystemExit, asyncio.CancelledError)


@dataclass(frozen=True)
class StageSpec:
    """What a worker is built from."""

    stage: str
    target: StageTarget
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    rowwise: bool
    outputs: int
    memory_limit_mb: int | None = None


@dataclass(slots=True)
class Column:
    """One output: a value a row, or with `shapes` one an element, row by row."""

    values: list[Any] = field(default_factory=list[Any])
    shapes: list[Shape] | None = None
    mask: bytearray | None = None

    @staticmethod
    def of(contract: CallContract, index: int) -> Column:
        """An empty column for output `index`."""
        return Column(
            [],
            [] if contract.list_depths[index] else None,
            bytearray() if contract.masks[index] else None,
        )


@dataclass(slots=True)
class Results:
    """What a call gave, checked."""

    columns: list[Column]
    failures: dict[int, RowFailure]
    skipped: list[int]


class Breach(Exception):
    """Something does not fit the contract."""

    def __init__(self, expected: str, received: str, row: int | None = None) -> None:
        super().__init__(expected, received, row)
        self.breach = ContractBreach(expected, received, row)


class StageRunner:
    """Builds the stage at once; raises whatever its constructor raises.

    An async stage runs its rows one at a time on a loop of the runner's own, where it is built and
    closed, too; by `shares_loop` it is built on the loop that runs (`AsyncRows` awaits its rows).
    """

    def __init__(self, spec: StageSpec, *, shares_loop: bool = False) -> None:
        self._spec = spec
        target = spec.target.resolve()
        self._loop: asyncio.AbstractEventLoop | None = None
        if _is_async(target) and not shares_loop:
            self._loop = asyncio.new_event_loop()
        try:
            built: Any = self._on_loop(self._build, target)
        except BaseException:
            self._close_loop()
            raise
        self.call: Callable[..., Any] = built
        self._call: Callable[..., Any] = built
        if self._loop is not None:
            self._call = partial(self._on_loop, built)
        self._close = getattr(built, "close", None) if inspect.isclass(target) else None
        limit = spec.memory_limit_mb
        self.memory: Callable[[], AbstractContextManager[None]]
        self.memory = nullcontext if limit is None else MemoryLimit(limit).held

    def _build(self, target: Any) -> Any:
        return target(*self._spec.args, **self._spec.kwargs) if inspect.isclass(target) else target

    def _on_loop(self, call: Callable[..., Any], *args: Any) -> Any:
        """What a call gives, made and awaited on the loop if there is one."""
        if self._loop is None:
            return call(*args)
        return self._loop.run_until_complete(_awaited(call, *args))

    def close(self) -> None:
        """Let the stage put away what it holds; raises whatever its `close` raises."""
        try:
            if self._close is not None:
                self._on_loop(self._close)
        finally:
            self._close_loop()

    async def closed(self) -> None:
        """`close` on the loop that it was built on."""
        if self._close is not None:
            await _awaited(self._close)

    def _close_loop(self) -> None:
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    def run(
        self, contract: CallContract, rows: int, columns: Sequence[list[Any]], gate: Gate
    ) -> Results | AttemptFailed | ContractBreach:
        """Call the stage for `rows` rows; `columns` has one list an input.

        Rows that the gate skips are not started and have no value.
        """
        run = self._row_by_row if self._spec.rowwise else self._whole_batch
        try:
            with self.memory():
                given = run(rows, columns, gate)
        except Breach as broken:
            return broken.breach
        except _Attempt as attempt:
            return attempt.failed
        return self._checked(contract, rows, given, gate)

    def checked_row(
        self, contract: CallContract, gate: Gate, result: Any, *, skipped: bool = False
    ) -> Results | ContractBreach:
        """The results of a batch of one row, from its result or how its attempt failed."""
        given = _Given({}, {}, [])
        if skipped:
            given.skipped.append(0)
        elif isinstance(result, RowFailure):
            given.failures[0] = result
        else:
            given.results[0] = result
        return self._checked(contract, 1, given, gate)

    def _checked(
        self, contract: CallContract, rows: int, given: _Given, gate: Gate
    ) -> Results | ContractBreach:
        try:
            checked = _check(self._spec, contract, rows, given)
        except Breach as broken:
            return broken.breach
        for row, failure in checked.failures.items():
            if failure.kind is Kind.GROUP_FAILURE:
                gate.failed(row)
        return checked

    def children(self, row: Sequence[Any]) -> Any:
        """The children that a stage which yields makes of one row; to be asked by `next_child`."""
        return self._yielded(self._call(*row))

    def _yielded(self, result: Any) -> Any:
        """A result, an async generator made a plain one."""
        if not inspect.isasyncgen(result):
            return result
        assert self._loop is not None
        return _drained(self._loop, result)

    def next_child(self, children: Generator[Any]) -> Any:
        """The next child. Raises StopIteration, or whatever the stage raises."""
        with self.memory():
            return next(children)

    def _row_by_row(self, rows: int, columns: Sequence[list[Any]], gate: Gate) -> _Given:
        given = _Given({}, {}, [])
        for row in range(rows):
            if gate.skips(row):
                given.skipped.append(row)
                continue
            gate.starts(row)
            try:
                result = self._yielded(self._call(*(column[row] for column in columns)))
                if inspect.isgenerator(result):
                    result = _collected(result, self._spec.outputs, row)
            except TypedFailure as failure:
                result = failure
            except FAULTS as error:
                given.failures[row] = attempt_of(error)
                continue
            given.results[row] = result
            if _bars_group(result):
                gate.failed(row)
        return given

    def _whole_batch(self, rows: int, columns: Sequence[list[Any]], gate: Gate) -> _Given:
        skipped = [row for row in range(rows) if gate.skips(row)] if gate.skips_any() else []
        kept = [row for row in range(rows) if row not in skipped] if skipped else range(rows)
        if skipped:
            columns = [[column[row] for row in kept] for column in columns]
        results = self._batch_results(len(kept), columns) if kept else []
        return _Given(dict(zip(kept, results, strict=True)), {}, skipped)

    def _batch_results(self, rows: int, columns: Sequence[list[Any]]) -> list[Any]:
        try:
            returned = self._call(*columns)
        except TypedFailure as failure:
            if rows == 1:
                return [failure]
            raise _Attempt(failure) from failure
        except FAULTS as error:
            raise _Attempt(error) from error
        return self._per_row(rows, returned)

    def _per_row(self, rows: int, returned: Any) -> list[Any]:
        """A batch's return as one result a row (a tuple a row where there are several outputs)."""
        if self._spec.outputs == 1:
            return _list_of(returned, rows)
        if not isinstance(returned, tuple) or len(returned) != self._spec.outputs:
            raise Breach(f"a tuple of {self._spec.outputs} lists", describe(returned))
        lists = [_list_of(one, rows) for one in returned]
        return [_first_failure(row) for row in zip(*lists, strict=True)]


@dataclass(slots=True)
class _Given:
    """What the stage gave, by row: results, attempts that failed, rows not started."""

    results: dict[int, Any]
    failures: dict[int, RowFailure]
    skipped: list[int]


def attempt_of(error: BaseException) -> RowFailure:
    """An exception that is one row's own attempt."""
    return RowFailure(None, type(error).__name__, short(error), is_backend_failure(error))


class _Attempt(Exception):
    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.failed = AttemptFailed(type(error).__name__, short(error), is_backend_failure(error))


async def _awaited(call: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, awaited if it is to be."""
    found = call(*args)
    return await found if inspect.isawaitable(found) else found


def _is_async(call: Callable[..., Any]) -> bool:
    method = getattr(call, "__call__", call)  # noqa: B004
    coroutine = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(method)
    return coroutine or inspect.isasyncgenfunction(call)


def _drained(loop: asyncio.AbstractEventLoop, children: Any) -> Generator[Any]:
    """An async generator's children, on a loop."""
    try:
        while True:
            try:
                child = loop.run_until_complete(anext(children))
            except StopAsyncIteration:
                return
            yield child
    finally:
        loop.run_until_complete(children.aclose())


def _collected(children: Iterator[Any], outputs: int, row: int) -> Any:
    """What is yielded for a row as a list, or as one list an output."""
    found: list[Any] = []
    while True:
        try:
            found.append(child_of(next(children), outputs, row))
        except StopIteration as end:
            failure = end_of(end, row)
            break
    if failure is not None:
        return failure
    if outputs == 1:
        return found
    return tuple([child[index] for child in found] for index in range(outputs))


def end_of(end: StopIteration, row: int) -> TypedFailure | None:
    """What a stage that yields returns: nothing, or a typed failure in the row's place."""
    if end.value is None or isinstance(end.value, TypedFailure):
        return end.value
    raise Breach("children that are all yielded", f"{describe(end.value)}, returned", row)


def child_of(child: Any, outputs: int, row: int) -> Any:
    """One child, checked as far as it can be alone."""
    if outputs > 1 and (not isinstance(child, tuple) or len(child) != outputs):
        raise Breach(f"a tuple of {outputs} values for each child", describe(child), row)
    if _holds_failure(child if outputs > 1 else (child,)):
        raise Breach("a list of children", "a failure among them", row)
    return child


def _list_of(returned: Any, rows: int) -> list[Any]:
    if not isinstance(returned, list | tuple):
        raise Breach(f"a list of {rows} results", describe(returned))
    if len(returned) != rows:
        raise Breach(f"{rows} results", f"{len(returned)} results")
    return list(returned)


def _first_failure(row: tuple[Any, ...]) -> Any:
    """The row's outputs, or the failure that one of them is (a GroupFailure beats the rest)."""
    failures = [value for value in row if isinstance(value, TypedFailure)]
    if not failures:
        return row
    return min(failures, key=lambda failure: failure.kind.gravity)


def _bars_group(result: Any) -> bool:
    values = result if isinstance(result, tuple) else (result,)
    return any(isinstance(value, GroupFailure) for value in values)


def _check(spec: StageSpec, contract: CallContract, rows: int, given: _Given) -> Results:
    plain = _all_plain(spec, contract, rows, given)
    if plain is not None:
        return Results([Column(plain)], {}, [])
    columns = [Column.of(contract, index) for index in range(spec.outputs)]
    failures = given.failures
    for row in range(rows):
        result = given.results.get(row)
        if row in given.results and spec.outputs > 1:
            result = _row_tuple(spec, row, result)
        if isinstance(result, TypedFailure):
            failures[row] = typed(result)
        if row in failures or row not in given.results:
            for column, depth in zip(columns, contract.list_depths, strict=True):
                _append_nothing(column, depth)
            continue
        values: Any = result if spec.outputs > 1 else (result,)
        for column, value, depth in zip(columns, values, contract.list_depths, strict=True):
            _append(column, value, depth, row)
    return Results(columns, failures, given.skipped)


def _all_plain(
    spec: StageSpec, contract: CallContract, rows: int, given: _Given
) -> list[Any] | None:
    """The one output's values, if each row gave one that needs no further look."""
    if spec.outputs > 1 or contract.list_depths[0] or contract.masks[0]:
        return None
    values = list(given.results.values())
    if len(values) < rows or given.failures or _holds_failure(values):
        return None
    return values


def _holds_failure(values: Iterable[Any]) -> bool:
    return any(issubclass(each, TypedFailure) for each in set(map(type, values)))


def _row_tuple(spec: StageSpec, row: int, result: Any) -> Any:
    if isinstance(result, TypedFailure):
        return result
    if not isinstance(result, tuple) or len(result) != spec.outputs:
        raise Breach(f"a tuple of {spec.outputs} values", describe(result), row)
    return _first_failure(result)


def _append_nothing(column: Column, depth: int) -> None:
    if column.shapes is not None:
        column.shapes.append(0 if depth == 1 else ())
        return
    column.values.append(None)
    if column.mask is not None:
        column.mask.append(0)


def _append(column: Column, value: Any, depth: int, row: int) -> None:
    if column.shapes is not None:
        column.shapes.append(flatten(column, value, depth, row))
        return
    column.values.append(value)
    if column.mask is not None:
        column.mask.append(_boolean(value, row))


def check_value(column: Column, value: Any, depth: int, row: int) -> ContractBreach | None:
    """Append a value that fits; one that does not leaves nothing, and is told."""
    length = len(column.values)
    mask = None if column.mask is None else len(column.mask)
    try:
        _append(column, value, depth, row)
    except Breach as broken:
        del column.values[length:]
        if column.mask is not None:
            del column.mask[mask:]
        _append_nothing(column, depth)
        return broken.breach
    return None


def flatten(column: Column, value: Any, depth: int, row: int) -> Shape:
    """Append a list's elements at the deepest level; returns its shape."""
    if not isinstance(value, list | tuple):
        raise Breach("a list of children", describe(value), row)
    if _holds_failure(value):
        raise Breach("a list of children", "a failure among them", row)
    if depth > 1:
        return tuple(flatten(column, element, depth - 1, row) for element in value)
    column.values.extend(value)
    if column.mask is not None:
        column.mask.extend(_boolean(element, row) for element in value)
    return len(value)


def _boolean(value: Any, row: int) -> int:
    if not isinstance(value, bool | np.bool_):
        raise Breach("a boolean, as it is used as a mask", describe(value), row)
    return int(value)


def typed(failure: TypedFailure) -> RowFailure:
    """A typed failure as plain data."""
    named, message = str(failure.type), str(failure.message)
    return RowFailure(Kind(failure.kind), _plain(named, LONGEST_TYPE), _plain(message))


def short(error: BaseException) -> str:
    """An error's message, bounded; of a full disk also where it is and what to do."""
    return _plain(full_disk.explained(error))


def _plain(text: str, most: int = LONGEST_MESSAGE) -> str:
    return plain_text(text, most, _redaction())


@cache
def _redaction() -> Callable[[str], str]:
    """Of this process: its driver does not know the secrets of a worker's own environment."""
    return redaction()


def describe(value: Any) -> str:
    """What a value is, for people who expected another."""
    name = type(value).__name__
    if inspect.isgenerator(value):
        return f"a generator (return a list, or give the stage rowwise=True and yield), {name}"
    if isinstance(value, list | tuple | dict | str | bytes):
        return f"a {name} of length {len(value)}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
