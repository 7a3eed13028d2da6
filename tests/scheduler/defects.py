"""Defects of the Scheduler, made on purpose: each is a patch that the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rayorch_prefect.model.events import BatchReported, DispatchBatch
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.model.reports import RowFailure, RowsReport
from rayorch_prefect.program.plan import CoalesceOp, OnFailure
from rayorch_prefect.scheduler import settling
from rayorch_prefect.scheduler.commit import Committer
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.dispatch import Dispatcher
from rayorch_prefect.scheduler.gaps import GapSearch
from rayorch_prefect.scheduler.grains import Grains, Phase
from rayorch_prefect.scheduler.items import Items
from rayorch_prefect.scheduler.lineage import Lineage
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.preflight import preflight
from rayorch_prefect.scheduler.queues import ReadyQueues
from rayorch_prefect.scheduler.settling import FixedPoint
from rayorch_prefect.scheduler.values import Values
from rayorch_prefect.scheduler.wiring import Wiring
from rayorch_prefect.scheduler.workers import Flight, Workers

Defect = Callable[[pytest.MonkeyPatch], None]
DEFECTS: dict[str, Defect] = {}


def defect(make: Defect) -> Defect:
    DEFECTS[make.__name__] = make
    return make


# -- reports --------------------------------------------------------------------------------------


@defect
def a_late_report_counts(patch: pytest.MonkeyPatch) -> None:
    """Neither the batch nor the generation is looked at."""
    flights: dict[int, Flight] = {}
    take_off, reported = Workers.take_off, Scheduler._batch_reported

    def remember(self: Workers, flight: Flight) -> None:
        flights[flight.batch] = flight
        take_off(self, flight)

    def apply(self: Scheduler, event: BatchReported) -> None:
        flight = flights[event.batch]
        if event.batch in self.workers.flights:
            reported(self, event)
            return
        self.counts.calls[flight.call].in_flight += flight.rows
        self._apply(flight, event.report, charge_backend=True)

    def in_flight(self: Committer, flight: Flight, run: Any, entity: int, row: int) -> bool:
        return bool(run.mb.grains.phase[flight.call][entity] == Phase.IN_FLIGHT)

    patch.setattr(Workers, "take_off", remember)
    patch.setattr(Scheduler, "_batch_reported", apply)
    patch.setattr(Committer, "_is_live", in_flight)


@defect
def values_of_a_late_report_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_let_go", lambda self, report: None)


@defect
def values_for_a_microbatch_that_has_left_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_drop_left", lambda self, flight, report: None)


@defect
def a_retry_keeps_the_generation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Grains, "raise_generation", lambda self, call, entity: None)


@defect
def a_barred_row_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_is_live", lambda self, flight, run, entity, row: True)


# -- failures -------------------------------------------------------------------------------------


@defect
def bars_come_after_commits(patch: pytest.MonkeyPatch) -> None:
    """Seen where a row was computed although its sibling's bar is in the same report."""

    def rows(self: Committer, flight: Flight, report: RowsReport, *, charge_backend: bool) -> None:
        call = self._plan.calls[flight.call]
        breach = preflight(self._plan, call, flight, report)
        if breach is not None:
            self._discard(report)
            self.breach(flight, breach)
            return
        for stretch in self._stretches(flight):
            self._commit(call, flight, report, stretch)
        for row, failure in sorted(report.failures.items()):
            if failure.kind == "GroupFailure":
                self._bar(flight, row, failure)
            else:
                self._row_failed(flight, row, failure, charge_backend or not failure.backend)
        self._drop_left(flight, report)
        self._end(flight)

    patch.setattr(Committer, "rows", rows)


def _bar_only(patch: pytest.MonkeyPatch, chosen: Callable[[int], bool]) -> None:
    """A bar that passes over siblings in some phases."""
    bar = Committer._bar

    def partial_bar(self: Committer, flight: Flight, row: int, failure: Any) -> None:
        live = self._at(flight, row)
        if live is None:
            return
        run, _, _ = live
        phases = run.mb.grains.phase
        plain = phases[flight.call]

        class Blinkered(bytearray):
            def __getitem__(self, at: Any) -> Any:
                return plain[at] if chosen(plain[at]) else Phase.ENDED

            def __setitem__(self, at: Any, value: Any) -> None:
                plain[at] = value

        phases[flight.call] = Blinkered(plain)
        bar(self, flight, row, failure)
        phases[flight.call] = plain

    patch.setattr(Committer, "_bar", partial_bar)


@defect
def ready_siblings_are_not_barred(patch: pytest.MonkeyPatch) -> None:
    _bar_only(patch, lambda phase: phase != Phase.READY)


@defect
def only_siblings_in_flight_are_barred(patch: pytest.MonkeyPatch) -> None:
    _bar_only(patch, lambda phase: phase == Phase.IN_FLIGHT)


@defect
def a_bar_reaches_other_parents(patch: pytest.MonkeyPatch) -> None:
    bar = Committer._bar

    def wide(self: Committer, flight: Flight, row: int, failure: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Lineage, "members", lambda self, domain, parent: (0, self.count[domain]))
            bar(self, flight, row, failure)

    patch.setattr(Committer, "_bar", wide)


@defect
def halving_charges_every_grain(patch: pytest.MonkeyPatch) -> None:
    attempt = Committer.attempt

    def charging(self: Committer, flight: Flight, failed: Any, *, charge: bool) -> None:
        if flight.rows > 1:
            for run, entity, _ in self._live_rows(flight):
                run.mb.grains.charge(flight.call, entity)
        attempt(self, flight, failed, charge=charge)

    patch.setattr(Committer, "attempt", charging)


@defect
def a_preempted_node_charges(patch: pytest.MonkeyPatch) -> None:
    attempt = Committer.attempt
    patch.setattr(
        Committer,
        "attempt",
        lambda self, flight, failed, charge: attempt(self, flight, failed, charge=True),
    )


@defect
def a_budget_is_one_attempt_more(patch: pytest.MonkeyPatch) -> None:
    charge = Grains.charge
    patch.setattr(Grains, "charge", lambda self, call, entity: charge(self, call, entity) - 1)


# -- settling -------------------------------------------------------------------------------------


@defect
def a_reduce_fires_one_early(patch: pytest.MonkeyPatch) -> None:
    def on_member(self: FixedPoint, number: int, port: int, first: int, end: int) -> None:
        join = self._wiring.joins[number]
        pending = self._mb.pending[number]
        for parent, start, stop in self._mb.groups(join.child, first, end):
            before = pending[parent]
            pending[parent] -= stop - start
            if before > 1 >= pending[parent] or before == 1 == stop - start:
                self._fire(join, parent)

    patch.setattr(FixedPoint, "_on_member", on_member)


@defect
def dropped_members_belong(patch: pytest.MonkeyPatch) -> None:
    def members(self: Values, join: Any, entity: int) -> list[int]:
        keep = join.on_failure is OnFailure.KEEP
        every = self._mb.lineage.members(join.child, entity)
        return [one for one in every if keep or not self.member_failed(join, one)]

    patch.setattr(Values, "find_members", members)


@defect
def a_failure_at_the_parents_own_scope_is_forgiven(patch: pytest.MonkeyPatch) -> None:
    reduce_failed = FixedPoint._reduce_failed

    def forgiving(self: FixedPoint, join: Any, parent: int) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            below = self._wiring.depth[join.domain] + 1
            cause = FixedPoint._member_cause

            def lower(self: FixedPoint, join: Any, entity: int) -> Any:
                failure, scope = cause(self, join, entity)
                return failure, below if scope == below - 1 else scope

            inner.setattr(FixedPoint, "_member_cause", lower)
            return reduce_failed(self, join, parent)

    patch.setattr(FixedPoint, "_reduce_failed", forgiving)


@defect
def one_gap_too_few_is_allowed(patch: pytest.MonkeyPatch) -> None:
    too_many = settling._too_many
    patch.setattr(settling, "_too_many", lambda limit, n, left: too_many(limit, n + 1, left))


@defect
def dropped_beats_failed(patch: pytest.MonkeyPatch) -> None:
    judge = Microbatch.judge

    def dropping(self: Microbatch, ports: tuple[int, ...], entity: int) -> Any:
        verdict, cause = judge(self, ports, entity)
        outcomes = [self.items.outcome[port][entity] for port in ports]
        if verdict == Outcome.SUPPRESSED and Outcome.DROPPED in outcomes:
            return Outcome.DROPPED, None
        return verdict, cause

    patch.setattr(Microbatch, "judge", dropping)


@defect
def an_expansion_of_a_dropped_list_is_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    no_members = FixedPoint._no_members

    def empty(self: FixedPoint, domain: int, parent: int, outcome: Any, cause: Any) -> None:
        outcome = Outcome.PRESENT if outcome == Outcome.DROPPED else outcome
        no_members(self, domain, parent, outcome, cause)

    patch.setattr(FixedPoint, "_no_members", empty)


@defect
def a_coalesce_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    on_input = FixedPoint._on_coalesce_input

    def hasty(self: FixedPoint, number: int, port: int, first: int, end: int) -> None:
        op = self._wiring.plan.ports[number].op
        assert isinstance(op, CoalesceOp)
        for entity in range(first, end):
            found = [self._items.outcome[source][entity] for source in op.sources]
            pending = self._items.outcome[number][entity] == Outcome.PENDING
            if pending and Outcome.PRESENT in found:
                self.settle_one(number, entity, Outcome.PRESENT, None)
        on_input(self, number, port, first, end)

    patch.setattr(FixedPoint, "_on_coalesce_input", hasty)


@defect
def ordinals_follow_completion(patch: pytest.MonkeyPatch) -> None:
    def place(self: Items, port: int, group: int, first: int, end: int, slot: int) -> None:
        self.pieces[port].setdefault(group, []).append((first, end, slot))

    def stored(
        self: Items, port: int, group: int, first: int, end: int
    ) -> Iterator[tuple[int, int]]:
        for start, stop, slot in self.pieces[port].get(group, []):
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield slot + low - start, high - low

    patch.setattr(Items, "place", place)
    patch.setattr(Items, "stored", stored)


@defect
def a_parent_may_end_twice(patch: pytest.MonkeyPatch) -> None:
    def on_output(self: FixedPoint, number: int, port: int, first: int, end: int) -> None:
        for row in range(first, end):
            if all(self._items.outcome[one][row] for one in self._wiring.output_at_root):
                self._mb.completed[row] = 1
                self._outlet.parent_ended(self._mb, row)

    patch.setattr(FixedPoint, "_on_output", on_output)


@defect
def a_gap_is_not_named(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GapSearch, "_look_at_list", lambda self, join, entity: None)


# -- values ---------------------------------------------------------------------------------------


@defect
def values_go_with_their_first_reader(patch: pytest.MonkeyPatch) -> None:
    def on_read(self: FixedPoint, number: int, port: int, first: int, end: int) -> None:
        release = self._wiring.releases[number]
        self._release(release, release.domain, first, end)

    patch.setattr(FixedPoint, "_on_read", on_read)


@defect
def a_reduce_is_no_way_to_a_siblings_value(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Wiring, "_merged", lambda self, *origins: {o: 99 for one in origins for o in one})

    def nearest(self: Wiring, one: int, other: int) -> int:
        if 99 in (one, other):
            return min(one, other)
        while one != other:
            deeper = self.depth[one] >= self.depth[other]
            one, other = (self._above(one), other) if deeper else (one, self._above(other))
        return one

    patch.setattr(Wiring, "common_ancestor", nearest)


@defect
def a_list_goes_before_it_was_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Wiring, "_lists_read_by", lambda self, port: {})


# -- queues and dispatch --------------------------------------------------------------------------


@defect
def closed_batches_are_joined(patch: pytest.MonkeyPatch) -> None:
    def push_closed(self: ReadyQueues, call: int, ranges: Any) -> None:
        for number, first, _ in reversed(ranges):
            self.push_head(call, number, first)

    patch.setattr(ReadyQueues, "push_closed", push_closed)


@defect
def the_tail_of_a_range_is_lost(patch: pytest.MonkeyPatch) -> None:
    take = ReadyQueues._take

    def losing(self: ReadyQueues, call: int, entry: Any, limit: int) -> Any:
        taken = take(self, call, entry, limit)
        if entry.ranges and entry.ranges[0][1] < entry.ranges[0][2]:
            entry.ranges.popleft()
        return taken

    patch.setattr(ReadyQueues, "_take", losing)


@defect
def the_head_of_a_range_is_taken_twice(patch: pytest.MonkeyPatch) -> None:
    push = ReadyQueues.push

    def twice(self: ReadyQueues, call: int, microbatch: int, first: int, end: int) -> None:
        push(self, call, microbatch, first, end)
        if end - first > 1:
            push(self, call, microbatch, first, first + 1)

    patch.setattr(ReadyQueues, "push", twice)


@defect
def only_one_batch_an_event(patch: pytest.MonkeyPatch) -> None:
    dispatch = Dispatcher.dispatch

    def idling(self: Dispatcher) -> Iterator[DispatchBatch]:
        for order in dispatch(self):
            yield order
            return

    patch.setattr(Dispatcher, "dispatch", idling)


@defect
def a_lost_worker_is_not_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Workers, "never_starts", lambda self, pool: self.starting[pool] < 0)
    start = Scheduler._start_worker

    def once(self: Scheduler, pool: int) -> None:
        if not self.counts.workers_lost:
            start(self, pool)

    patch.setattr(Scheduler, "_start_worker", once)


# -- two batches at a worker ----------------------------------------------------------------------


@defect
def a_row_skipped_for_a_bar_that_does_not_hold_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_rows_skipped", lambda self, flight, rows: None)


@defect
def a_bar_that_does_not_hold_stays_at_the_worker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "bar_unknown", lambda self, worker, bar: None)


@defect
def a_skipped_row_is_charged(patch: pytest.MonkeyPatch) -> None:
    def charged(self: Committer, flight: Flight, rows: tuple[int, ...]) -> None:
        for row in rows:
            live = self._at(flight, row)
            if live is not None:
                self._charge(flight, live, RowFailure(None, "Skipped", ""), alone=False)

    patch.setattr(Committer, "_rows_skipped", charged)


@defect
def what_waits_at_a_dead_worker_counts_as_started(patch: pytest.MonkeyPatch) -> None:
    lose = Workers.lose

    def all_started(self: Workers, *lost: Any) -> list[tuple[Flight, bool]]:
        return [(flight, True) for flight, _ in lose(self, *lost)]

    patch.setattr(Workers, "lose", all_started)


@defect
def what_waits_at_a_dead_worker_is_lost(patch: pytest.MonkeyPatch) -> None:
    lose = Workers.lose

    def oldest(self: Workers, *lost: Any) -> list[tuple[Flight, bool]]:
        return lose(self, *lost)[:1]

    patch.setattr(Workers, "lose", oldest)


@defect
def a_batch_taken_back_is_not_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "taken_back", lambda self, flight: None)


@defect
def batches_that_are_not_full_are_sent_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReadyQueues, "reserve_full", ReadyQueues.reserve)


@defect
def the_bar_of_a_row_is_its_neighbours(patch: pytest.MonkeyPatch) -> None:
    segments = Dispatcher._segments

    def shifted(self: Dispatcher, call: Any, ranges: Any) -> Iterator[Any]:
        found = list(segments(self, call, ranges))
        yield from (
            (row, found[at - 1][1]) if at else (row, bar) for at, (row, bar) in enumerate(found)
        )

    patch.setattr(Dispatcher, "_segments", shifted)
