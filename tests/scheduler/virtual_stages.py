"""What virtual workers do: values, failures and broken contracts, and the slots they lie in."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rayorch_prefect.model.events import DispatchBatch
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.parts import Part
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    OutputReport,
    Report,
    RowFailure,
    RowsReport,
    Shape,
)
from rayorch_prefect.program.plan import Call, CallOutputOp, Plan
from tests.scheduler.bounds import Stored, cut
from tests.scheduler.evaluator import Behaviour, Evaluator, Path, Value, failed_type


@dataclass
class Sent:
    """A batch at a virtual worker; `shipped`: children that were handed over, by row."""

    order: DispatchBatch
    paths: list[Path]
    shipped: dict[int, int] = field(default_factory=dict[int, int])


@dataclass
class Statistics:
    """What a run has met."""

    events: int = 0
    losses: int = 0
    deadlines: int = 0
    suspects: int = 0
    lingers: int = 0
    row_deadlines: int = 0
    recycled: int = 0
    worn: int = 0
    outages: int = 0
    pauses: int = 0
    failed_attempts: int = 0
    typed: int = 0
    late: int = 0
    skipped: int = 0
    taken_back: int = 0
    forgotten: int = 0
    breaches: int = 0
    parents: dict[str, int] = field(default_factory=dict[str, int])
    gaps: int = 0
    forgiven: int = 0
    open: int = 0
    chunks: int = 0
    cut_short: int = 0
    let_past: int = 0
    doomed: int = 0
    most_held: int = 0

    def eventful(self) -> bool:
        """Whether something did not go well: a loss, a retry or a typed failure."""
        return bool(self.losses or self.deadlines or self.failed_attempts or self.typed)


class VirtualStages:
    """Computes reports and owns the store: slot to symbolic value (None for a failed row)."""

    def __init__(
        self,
        plan: Plan,
        does: Behaviour,
        expected: Evaluator,
        pick: random.Random,
        breach: float,
    ) -> None:
        self.statistics = Statistics()
        self.store: dict[int, Value | None] = {}
        self.broken: set[tuple[int, int]] = set()
        self._plan = plan
        self._does = does
        self._expected = expected
        self._pick = pick
        self._breach = breach
        self._charged: dict[tuple[int, Path], int] = {}
        self._attempts_left: dict[tuple[int, Path], int] = {}
        self._next_slot = 0
        self._cut = random.Random(pick.random())
        self.stored_by_calls: list[Stored] = []

    def release(self, slot: int, n: int) -> None:
        """The scheduler says that nobody will read these any more."""
        assert n > 0
        for at in range(slot, slot + n):
            assert at in self.store, f"slot {at} is released but not there"
            del self.store[at]

    def invalid_rows(self, number: int, rows: int) -> Iterator[tuple[int, RowFailure]]:
        """Source rows can break the contract too, where the Program takes them apart."""
        if not self._breach or not (self._plan.source_list_depth or self._plan.source_is_mask):
            return
        for row in range(rows):
            if self._pick.random() < self._breach:
                self.broken.add((number, row))
                yield row, RowFailure(Kind.CONTRACT_ERROR, "ContractError", "a text")

    def may_charge(self, sent: Sent, row: int = 0) -> bool:
        """Whether one Grain of the batch can bear a charge, its own failures to come."""
        key = (sent.order.call, sent.paths[row])
        budget = self._budget(sent.order.call)
        to_come = self._attempts_to_come(*key)
        spent = self._charged.get(key, 0) + 1
        deed = self._does.deed(*key)
        if deed.attempts < budget and spent + to_come >= budget:
            return False
        self._charged[key] = spent
        return True

    def _budget(self, call: int) -> int:
        return self._plan.pools[self._plan.calls[call].pool].retry_budget

    def _attempts_to_come(self, call: int, path: Path) -> int:
        key = (call, path)
        return self._attempts_left.setdefault(key, self._does.deed(call, path).attempts)

    def computed(self, sent: Sent, *, counts: bool, skipped: tuple[int, ...] = ()) -> Report:
        """What the stage gives; `counts`: an attempt that fails is used up."""
        call = self._plan.calls[sent.order.call]
        if self._breach and counts and self._pick.random() < self._breach:
            return self._breached(call, sent)
        started = [path for row, path in enumerate(sent.paths) if row not in skipped]
        fails = any(self._attempts_to_come(call.id, path) for path in started)
        if fails and not self._plan.pools[call.pool].rowwise:
            if counts:
                self.statistics.failed_attempts += 1
                if len(sent.paths) == 1:
                    self._use_up(call.id, sent.paths[0])
            return AttemptFailed(failed_type(Kind.ATTEMPTS_EXHAUSTED, call.id), "boom")
        failures = self._row_failures(call, sent, counts, skipped)
        return self._rows_report(call, sent, failures, skipped)

    def out_of_reach(self, sent: Sent, skipped: tuple[int, ...]) -> Report:
        """Every row fails, as the backend is down; nothing is used up."""
        call = self._plan.calls[sent.order.call]
        type = failed_type(Kind.ATTEMPTS_EXHAUSTED, call.id)
        if not self._plan.pools[call.pool].rowwise:
            return AttemptFailed(type, "refused", backend=True)
        rows = [row for row in range(sent.order.rows) if row not in skipped]
        failures = {row: RowFailure(None, type, "refused", backend=True) for row in rows}
        return self._rows_report(call, sent, failures, skipped)

    def _use_up(self, call: int, path: Path) -> None:
        self._attempts_left[call, path] -= 1
        self._charged[call, path] = self._charged.get((call, path), 0) + 1

    def _row_failures(
        self, call: Call, sent: Sent, counts: bool, skipped: tuple[int, ...]
    ) -> dict[int, RowFailure]:
        found: dict[int, RowFailure] = {}
        for row, path in enumerate(sent.paths):
            if row in skipped:
                continue
            deed = self._does.deed(call.id, path)
            if self._attempts_to_come(call.id, path):
                found[row] = RowFailure(None, failed_type(Kind.ATTEMPTS_EXHAUSTED, call.id), "boom")
                if counts:
                    self.statistics.failed_attempts += 1
                    self._use_up(call.id, path)
            elif deed.kind is not None:
                found[row] = RowFailure(deed.kind, failed_type(deed.kind, call.id), "typed")
                self.statistics.typed += counts
        return found

    def _rows_report(
        self,
        call: Call,
        sent: Sent,
        failures: dict[int, RowFailure],
        skipped: tuple[int, ...] = (),
    ) -> RowsReport:
        empty = {*failures, *skipped}
        rest = {row: (n, 1 << 30) for row, n in sent.shipped.items()}
        self.statistics.cut_short += any(failures[row].kind for row in failures if row in rest)
        outputs = tuple(
            self.stored(port, is_mask, sent.paths, empty, rest)
            for port, is_mask in zip(call.outputs, call.masks, strict=True)
        )
        return RowsReport(len(sent.paths), outputs, failures, skipped)

    def stored(
        self,
        port: int,
        is_mask: bool,
        paths: list[Path],
        empty: Container[int],
        parts: Mapping[int, tuple[int, int]] = MappingProxyType({}),
    ) -> OutputReport:
        """The values of rows; of those in `parts` only the elements first..end-1."""
        first = self._next_slot
        depth = self._expected.list_depth(port)
        shapes: list[Shape] = []
        mask = bytearray()
        for row, path in enumerate(paths):
            if row in empty:
                shapes.append(0 if depth == 1 else ())
                if not depth:
                    self._put(None, mask)
                continue
            value = self._expected.made(port, path)
            if row in parts:
                value = ("L", value[1][slice(*parts[row])])
            shapes.append(_shape(value, depth))
            for leaf in _leaves(value, depth):
                self._put(leaf, mask)
        slots = self._next_slot - first
        return OutputReport(
            first,
            slots,
            tuple(shapes) if depth else None,
            bytes(mask) if is_mask else None,
            self._sizes(port, first, slots),
        )

    def _sizes(self, port: int, first: int, slots: int) -> tuple[tuple[int, int, bool], ...]:
        op = self._plan.ports[port].op
        if not isinstance(op, CallOutputOp):
            return ()
        sizes = cut(self._cut, slots)
        for n, weighs, parted in sizes:
            self.stored_by_calls.append(((first, n, weighs, parted), op.call))
            first += n
        return sizes

    def _put(self, value: Value | None, mask: bytearray) -> None:
        self.store[self._next_slot] = value
        self._next_slot += 1
        mask.append(int(value is not None and value[4]))

    def _breached(self, call: Call, sent: Sent) -> Report:
        """A report that does not fit the Plan, one way or another."""
        self.statistics.breaches += 1
        self.broken.update((path[0], path[1]) for path in sent.paths)
        report = self._rows_report(call, sent, {})
        rows, (first, *others) = report.rows, report.outputs
        choice = self._pick.randrange(6)
        if choice == 1:
            return RowsReport(rows + 1, report.outputs)
        if choice == 2:
            return RowsReport(rows, (*report.outputs, OutputReport(0, 0)))
        if choice == 3:
            failure = RowFailure(Kind.RECORD_FAILURE, "beyond", "the batch")
            return RowsReport(rows, report.outputs, {rows: failure})
        if choice == 4 and first.mask is not None:
            bare = replace(first, mask=None)
            return RowsReport(rows, (bare, *others))
        if choice == 5:
            wrong = None if first.shapes is not None else (0,) * rows
            odd = replace(first, shapes=wrong)
            if wrong is not None or first.slots != rows:
                return RowsReport(rows, (odd, *others))
        for output in report.outputs:
            for slot in range(output.first_slot, output.first_slot + output.slots):
                del self.store[slot]
        return ContractBreach("a list", "an int")

    def rows_of(self, part: Part) -> list[Value]:
        match part:
            case ("R", slot, n):
                found: list[Value] = []
                for at in range(slot, slot + n):
                    assert at in self.store, f"slot {at} is read but not there"
                    value = self.store[at]
                    assert value is not None, "the value of a failed row is read"
                    found.append(value)
                return found
            case ("L", parts):
                return [("L", self.all_rows(parts))]
            case ("M", parts, ordinals, missing):
                rows = self.all_rows(parts)
                ordinals = tuple(range(len(rows))) if ordinals is None else ordinals
                return [("M", rows, ordinals, missing)]
            case ("X", inner, n):
                (row,) = self.rows_of(inner)
                return [row] * n
            case ("F", failure):
                return [("K", (failure.kind, failure.path))]
            case _:
                raise AssertionError(f"what is {part}?")

    def all_rows(self, parts: tuple[Part, ...]) -> tuple[Value, ...]:
        return tuple(row for part in parts for row in self.rows_of(part))


def _shape(value: Value, depth: int) -> Shape:
    if depth == 1:
        return len(value[1])
    return tuple(_shape(one, depth - 1) for one in value[1]) if depth else 0


def _leaves(value: Value, depth: int) -> Iterator[Value]:
    if not depth:
        yield value
        return
    for one in value[1]:
        yield from _leaves(one, depth - 1)


def matches(expected: Value | None, actual: Value | None) -> bool:
    """Whether an actual tree is one the expected tree allows (kept failures may differ)."""
    if expected == actual:
        return True
    if expected is None or actual is None or expected[0] != actual[0]:
        return False
    if expected[0] == "K":
        return actual[1] in expected[1]
    if expected[0] == "v" or len(expected[1]) != len(actual[1]) or expected[2:] != actual[2:]:
        return False
    return all(map(matches, expected[1], actual[1]))
