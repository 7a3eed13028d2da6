"""From a worker's report to settled Items: fence, preflight, bars, commits, attempts.

The order is the contract's: a report that does not fit the Plan commits nothing; in one report
bars are applied before commits; an attempt that failed raises the generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rayorch_prefect.model.events import Bar, ChildrenArrived, EntityRange
from rayorch_prefect.model.outcomes import Failure, Kind, Outcome
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    OutputReport,
    RowFailure,
    RowsReport,
    Shape,
)
from rayorch_prefect.program.plan import Call, Plan
from rayorch_prefect.scheduler.concurrent import companies
from rayorch_prefect.scheduler.counts import Counts
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.items import ListItem, total_slots
from rayorch_prefect.scheduler.preflight import preflight, require_chunk
from rayorch_prefect.scheduler.queues import ReadyQueues
from rayorch_prefect.scheduler.run import Run
from rayorch_prefect.scheduler.settling import Outlet
from rayorch_prefect.scheduler.workers import Flight

# (run, Entity, row in the batch)
LiveRow = tuple[Run, int, int]


@dataclass(slots=True)
class _Stretch:
    """Consecutive rows of a batch that are one range of one microbatch, from `row` on."""

    run: Run
    first: int
    end: int
    row: int


class Committer:
    """Applies what came of a batch to the tables."""

    def __init__(
        self,
        plan: Plan,
        runs: dict[int, Run],
        queues: ReadyQueues,
        counts: Counts,
        outlet: Outlet,
    ) -> None:
        self._outlet = outlet
        self._plan = plan
        self._runs = runs
        self._queues = queues
        self._counts = counts

    # -- entry points -----------------------------------------------------------------------

    def rows(self, flight: Flight, report: RowsReport, *, charge_backend: bool) -> None:
        """The stage returned: bars first, then the rest row by row or by slices."""
        call = self._plan.calls[flight.call]
        breach = preflight(self._plan, call, flight, report)
        if breach is not None:
            self._discard(report)
            self.breach(flight, breach)
            return
        typed = {row: failure for row, failure in report.failures.items() if failure.kind}
        for row, failure in typed.items():
            if failure.kind is Kind.GROUP_FAILURE:
                self._bar(flight, row, failure)
        for row, failure in sorted(report.failures.items()):
            self._row_failed(flight, row, failure, charge_backend or not failure.backend)
        self._rows_skipped(flight, report.skipped)
        for stretch in self._stretches(flight):
            self._commit(call, flight, report, stretch)
        self._drop_left(flight, report)
        self._end(flight)

    def attempt(self, flight: Flight, failed: AttemptFailed, *, charge: bool) -> None:
        """The whole batch gave nothing: halve it until the culprit stands alone."""
        live = self._tried_in_vain(flight)
        closed = not self._is_concurrent(flight)
        if not charge:
            self._again(flight.call, live, closed=closed)
        elif flight.rows == 1 and live:
            error = RowFailure(None, failed.type, failed.message, failed.backend)
            self._charge(flight, live[0], error, alone=closed)
        else:
            middle = (len(live) + 1) // 2
            self._again(flight.call, live[middle:])
            self._again(flight.call, live[:middle])
        self._end(flight)

    def rows_lost(
        self, flights: list[Flight], failed: AttemptFailed, charge: bool, in_company: bool
    ) -> None:
        """A worker with these rows in flight, and no other, is gone; by `charge` of its own."""
        if charge or in_company:
            self.suspects(flights, failed, charge=charge)
        else:
            for flight in reversed(flights):
                self.attempt(flight, failed, charge=False)

    def suspects(self, flights: list[Flight], failed: AttemptFailed, *, charge: bool) -> None:
        """One of these rows may have ended its worker; without `charge` they stay suspects."""
        if charge and len(flights) == 1:
            (flight,) = flights
            error = RowFailure(None, failed.type, failed.message)
            for alone in self._tried_in_vain(flight):
                self._charge(flight, alone, error, alone=True)
        else:
            for company in reversed(companies(flights, halve=charge)):
                live = [one for flight in company for one in self._tried_in_vain(flight)]
                self._again(company[0].call, live)
        for flight in flights:
            self._end(flight)

    def _tried_in_vain(self, flight: Flight) -> list[LiveRow]:
        """The rows that still matter of a batch that gave nothing, under a new generation."""
        live = list(self._live_rows(flight))
        self._counts.dropped_rows += flight.rows - len(live)
        for run, entity, _ in live:
            run.mb.grains.raise_generation(flight.call, entity)
        return live

    def _is_concurrent(self, flight: Flight) -> bool:
        return self._plan.pools[self._plan.calls[flight.call].pool].is_concurrent

    def row_failed_alone(self, flight: Flight, row: int, failed: AttemptFailed) -> None:
        """One known row spoiled its batch: it is tried alone next, the others are not charged."""
        live = self._tried_in_vain(flight)
        for one in reversed(live):
            if one[2] != row:
                self._again(flight.call, [one], closed=False)
        for one in live:
            if one[2] == row:
                error = RowFailure(None, failed.type, failed.message)
                self._charge(flight, one, error, alone=True)
        self._end(flight)

    def taken_back(self, flight: Flight) -> None:
        """The batch was never started: it goes back to the head as it is."""
        live = list(self._live_rows(flight))
        self._return(flight.call, live, closed=not self._is_concurrent(flight))
        self._end(flight)

    def breach(self, flight: Flight, breach: ContractBreach) -> None:
        """A defect of the program: every parent with a Grain in the batch is FAILED.

        The one whose row is at fault fails by that Grain, the others by what is said of it.
        """
        call = self._plan.calls[flight.call]
        self._counts.contract_errors += 1
        rows = list(self._rows(flight))
        at_fault = next((one for one in rows if one[2] == breach.row), None)
        for run, entity, _ in rows:
            row = run.mb.root_of(call.domain, entity)
            failure = self._breached(flight.call, run, entity, breach, at_fault)
            run.mb.contract.setdefault(row, failure)
            run.settle.doom(row, (failure, 0))
            if run.mb.grains.phase[flight.call][entity] == Phase.IN_FLIGHT:
                self._counts.calls[flight.call].failed += 1
                run.settle.end_grain(flight.call, entity, Outcome.FAILED, (failure, 0))
        self._end(flight)

    def _breached(
        self, call: int, run: Run, entity: int, breach: ContractBreach, at_fault: LiveRow | None
    ) -> Failure:
        """The failure of the parent of one Grain in a batch that broke the contract."""
        message = f"expected {breach.expected}, received {breach.received}"
        culprit: tuple[int, int] | None = None
        if at_fault is not None:
            domain = self._plan.calls[call].domain
            other, guilty, _ = at_fault
            root = other.mb.root_of(domain, guilty)
            if (other, root) == (run, run.mb.root_of(domain, entity)):
                entity = guilty
            else:
                culprit = other.mb.number, root
                path = "/".join(map(str, other.mb.path(domain, guilty)))
                where = f"{self._plan.domains[domain].name} {path}".strip()
                message += f", at {where} of another source in the same batch"
        told = RowFailure(Kind.CONTRACT_ERROR, "ContractError", message)
        return replace(self._failure(call, run, entity, told), culprit=culprit)

    def chunk(self, flight: Flight, arrived: ChildrenArrived) -> None:
        """Children of a row that still runs are there; those of one that no longer matters go.

        Raises IllegalEvent, before anything has changed, for a chunk that does not fit.
        """
        call = self._plan.calls[flight.call]
        live = self._at(flight, arrived.row)
        n = require_chunk(self._plan, call, flight, arrived, self._taken(call, live))
        self._outlet.values_arrived(flight.call, arrived.outputs)
        if live is None:
            self._outlet.release([(output.first_slot, output.slots) for output in arrived.outputs])
            return
        run, entity, _ = live
        for port, output in zip(call.outputs, arrived.outputs, strict=True):
            store_rows(run, port, output, entity, entity + 1, 0)
        run.settle.members_arrived(call, entity, n)
        run.settle.run()

    def _taken(self, call: Call, live: LiveRow | None) -> int | None:
        return None if live is None else live[0].mb.items.arrived(call.outputs[0], live[1])

    # -- rows of a batch --------------------------------------------------------------------

    def _stretches(self, flight: Flight) -> Iterator[_Stretch]:
        row = 0
        for number, first, end in flight.ranges:
            run = self._runs.get(number)
            if run is not None:
                yield _Stretch(run, first, end, row)
            row += end - first

    def _rows(self, flight: Flight) -> Iterator[LiveRow]:
        for stretch in self._stretches(flight):
            for entity in range(stretch.first, stretch.end):
                yield stretch.run, entity, stretch.row + entity - stretch.first

    def _is_live(self, flight: Flight, run: Run, entity: int, row: int) -> bool:
        """The fence: in flight, and of the generation that was sent."""
        grains = run.mb.grains
        return grains.phase[flight.call][entity] == Phase.IN_FLIGHT and grains.generation[
            flight.call
        ].get(entity, 0) == flight.generations.get(row, 0)

    def _live_rows(self, flight: Flight) -> Iterator[LiveRow]:
        return (live for live in self._rows(flight) if self._is_live(flight, *live))

    def _at(self, flight: Flight, row: int) -> LiveRow | None:
        """The live Grain at a row, if it still matters."""
        for stretch in self._stretches(flight):
            entity = stretch.first + row - stretch.row
            if stretch.first <= entity < stretch.end:
                live = (stretch.run, entity, row)
                return live if self._is_live(flight, *live) else None
        return None

    # -- failures ---------------------------------------------------------------------------

    def _bar(self, flight: Flight, row: int, failure: RowFailure) -> None:
        """GroupFailure: the Grain fails, its uncommitted siblings are suppressed at once."""
        live = self._at(flight, row)
        if live is None:
            return
        run, entity, _ = live
        call = self._plan.calls[flight.call]
        counts = self._counts.calls[flight.call]
        depth = self._plan.domains[call.domain].depth
        group = run.mb.group_of(call.domain, entity)
        cause = (self._failure(flight.call, run, entity, failure), max(0, depth - 1))
        counts.failed += 1
        run.settle.end_grain(flight.call, entity, Outcome.FAILED, cause)
        if not call.domain:
            return
        run.mb.grains.barred[flight.call][group] = cause
        self._outlet.barred((run.mb.number, flight.call, group), flight.worker)
        phase = run.mb.grains.phase[flight.call]
        for sibling in run.mb.lineage.members(call.domain, group):
            if phase[sibling] != Phase.ENDED:
                counts.ready -= phase[sibling] == Phase.READY
                counts.suppressed += 1
                run.settle.end_grain(flight.call, sibling, Outcome.SUPPRESSED, cause)

    def _row_failed(self, flight: Flight, row: int, failure: RowFailure, charge: bool) -> None:
        live = self._at(flight, row)
        if live is None:
            return
        run, entity, _ = live
        if failure.kind is None:
            run.mb.grains.raise_generation(flight.call, entity)
            if charge:
                self._charge(flight, live, failure, alone=False)
            else:
                self._again(flight.call, [live], closed=False)
            return
        depth = self._plan.domains[self._plan.calls[flight.call].domain].depth
        cause = (self._failure(flight.call, run, entity, failure), depth)
        self._counts.calls[flight.call].failed += 1
        run.settle.end_grain(flight.call, entity, Outcome.FAILED, cause)

    def _rows_skipped(self, flight: Flight, rows: tuple[int, ...]) -> None:
        """Their groups are barred; or a bar's report did not count, and they are sent again."""
        domain = self._plan.calls[flight.call].domain
        unknown: dict[Bar, None] = {}
        for row in reversed(rows):
            live = self._at(flight, row)
            if live is not None:
                run, entity, _ = live
                unknown[run.mb.number, flight.call, run.mb.group_of(domain, entity)] = None
                self._return(flight.call, [live], closed=False)
        for bar in unknown:
            self._outlet.bar_unknown(flight.worker, bar)

    def _charge(self, flight: Flight, live: LiveRow, error: RowFailure, *, alone: bool) -> None:
        """An attempt that the Grain made as the known row; spent budgets end it.

        After a failure of the backend others go first: whether it is down is soon seen.
        """
        run, entity, _ = live
        call = self._plan.calls[flight.call]
        attempts = run.mb.grains.charge(flight.call, entity)
        root = run.mb.root_of(call.domain, entity)
        budget = self._plan.pools[call.pool].retry_budget
        run.mb.tries[root] = max(run.mb.tries.get(root, 1), min(attempts + 1, budget))
        if attempts < budget:
            self._again(flight.call, [live], closed=alone, last=error.backend)
            return
        spent = RowFailure(Kind.ATTEMPTS_EXHAUSTED, error.type, error.message)
        failure = self._failure(flight.call, run, entity, spent, attempts)
        self._counts.calls[flight.call].failed += 1
        depth = self._plan.domains[call.domain].depth
        run.settle.end_grain(flight.call, entity, Outcome.FAILED, (failure, depth))

    def _again(
        self, call: int, live: list[LiveRow], *, closed: bool = True, last: bool = False
    ) -> None:
        """Grains go back to the head of their queue, or to its end."""
        self._counts.retries += len(live)
        self._return(call, live, closed=closed, last=last)

    def _return(self, call: int, live: list[LiveRow], *, closed: bool, last: bool = False) -> None:
        if not live:
            return
        self._counts.calls[call].ready += len(live)
        for run, entity, _ in live:
            run.mb.grains.move(call, entity, entity + 1, Phase.READY)
        if last:
            for run, entity, _ in live:
                self._queues.push_last(call, run.mb.number, entity)
        elif closed:
            self._queues.push_closed(call, _ranges(live))
        else:
            for run, entity, _ in live:
                self._queues.push_head(call, run.mb.number, entity)

    def _failure(
        self, call: int, run: Run, entity: int, failure: RowFailure, attempts: int = 1
    ) -> Failure:
        assert failure.kind is not None
        domain = self._plan.calls[call].domain
        return Failure(
            failure.kind,
            failure.type,
            failure.message,
            self._plan.calls[call].stage,
            self._plan.domains[domain].name,
            run.mb.path(domain, entity),
            attempts,
        )

    # -- commits ----------------------------------------------------------------------------

    def _commit(self, call: Call, flight: Flight, report: RowsReport, at: _Stretch) -> None:
        """Commit the live rows of a stretch; values of the others are let go."""
        grains = at.run.mb.grains
        whole = (
            not report.failures
            and not report.skipped
            and not flight.generations
            and not grains.generation[call.id]
            and grains.all_in(call.id, Phase.IN_FLIGHT, at.first, at.end)
        )
        if whole:
            self._commit_range(call, report, at.run, at.first, at.end, at.row)
            return
        valueless = {*report.failures, *report.skipped}
        first = None
        for entity in range(at.first, at.end + 1):
            row = at.row + entity - at.first
            good = (
                entity < at.end
                and row not in valueless
                and self._is_live(flight, at.run, entity, row)
            )
            if good and first is None:
                first = entity
            elif not good and first is not None:
                self._commit_range(call, report, at.run, first, entity, at.row + first - at.first)
                first = None
            if not good and entity < at.end:
                self._drop_row(report, row)

    def _drop_row(self, report: RowsReport, row: int) -> None:
        self._counts.dropped_rows += row not in report.failures and row not in report.skipped
        for output in report.outputs:
            self._outlet.release([slots_of(output, row, 1)])

    def _drop_left(self, flight: Flight, report: RowsReport) -> None:
        """Let go of what was made for microbatches that have left."""
        row = 0
        for number, first, end in flight.ranges:
            if number not in self._runs:
                self._counts.dropped_rows += end - first
                for output in report.outputs:
                    self._outlet.release([slots_of(output, row, end - first)])
            row += end - first

    def _commit_range(
        self, call: Call, report: RowsReport, run: Run, first: int, end: int, row: int
    ) -> None:
        run.mb.grains.move(call.id, first, end, Phase.ENDED)
        self._counts.calls[call.id].grains += end - first
        for port, output in zip(call.outputs, report.outputs, strict=True):
            store_rows(run, port, output, first, end, row)
        for port in call.outputs:
            run.settle.present(port, first, end)

    # -- ends -------------------------------------------------------------------------------

    def _discard(self, report: RowsReport) -> None:
        """Let go of every stored value of a report that commits nothing."""
        self._outlet.release([(output.first_slot, output.slots) for output in report.outputs])

    def _end(self, flight: Flight) -> None:
        self._counts.calls[flight.call].in_flight -= flight.rows
        self._queues.landed(flight.call, flight.ranges)
        for number in dict.fromkeys(number for number, _, _ in flight.ranges):
            run = self._runs.get(number)
            if run is not None:
                run.settle.run()


def _ranges(live: list[LiveRow]) -> list[EntityRange]:
    """Rows as ranges, neighbours joined."""
    found: list[EntityRange] = []
    for run, entity, _ in live:
        if found and found[-1][0] == run.mb.number and found[-1][2] == entity:
            found[-1] = (run.mb.number, found[-1][1], entity + 1)
        else:
            found.append((run.mb.number, entity, entity + 1))
    return found


def store_rows(run: Run, port: int, output: OutputReport, first: int, end: int, row: int) -> None:
    """Write down where the values of Entities first..end-1 (rows from `row` on) lie."""
    items = run.mb.items
    if output.shapes is not None:
        _store_lists(run, port, output, first, end, row)
        return
    for group, start, stop in run.mb.groups(run.mb.wiring.domain_of[port], first, end):
        items.place(port, group, start, stop, output.first_slot + row + start - first)
    if port in items.mask and output.mask is not None:
        items.mask[port][first:end] = output.mask[row : row + end - first]


def _store_lists(run: Run, port: int, output: OutputReport, first: int, end: int, row: int) -> None:
    assert output.shapes is not None
    lists = run.mb.items.lists[port]
    used = _slots_before(output.shapes, row)
    for entity in range(first, end):
        shape = output.shapes[row + entity - first]
        n = total_slots(shape)
        mask = None if output.mask is None else output.mask[used : used + n]
        item = ListItem.of(shape, output.first_slot + used, mask)
        # Some of it may have arrived before.
        lists[entity] = lists[entity].joined(item) if entity in lists else item
        used += n


def _slots_before(shapes: tuple[Shape, ...], row: int) -> int:
    return sum(total_slots(shape) for shape in shapes[:row])


def slots_of(output: OutputReport, row: int, n: int) -> tuple[int, int]:
    """(slot, n) of the values of n rows."""
    if output.shapes is None:
        return output.first_slot + row, n
    before = _slots_before(output.shapes, row)
    return output.first_slot + before, _slots_before(output.shapes, row + n) - before
