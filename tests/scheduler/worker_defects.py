"""Defects of how workers are ended and replaced, beside those of `defects.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch_prefect.model.events import EndWorker
from rayorch_prefect.model.reports import AttemptFailed, RowFailure
from rayorch_prefect.scheduler.breakers import Breakers, Verdict
from rayorch_prefect.scheduler.commit import Committer
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.workers import Flight, Workers
from tests.scheduler.defects import DEFECTS, defect

__all__ = ["DEFECTS"]

# -- deadlines ------------------------------------------------------------------------------------


@defect
def the_row_at_the_limit_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    def uncharged(self: Committer, flight: Flight, row: int, failed: Any) -> None:
        self.attempt(flight, failed, charge=False)

    patch.setattr(Committer, "row_failed_alone", uncharged)


@defect
def the_neighbours_of_the_row_at_the_limit_are_charged(patch: pytest.MonkeyPatch) -> None:
    def all_charged(self: Committer, flight: Flight, row: int, failed: Any) -> None:
        for live in list(self._live_rows(flight)):
            live[0].mb.grains.raise_generation(flight.call, live[1])
            error = RowFailure(None, failed.type, failed.message)
            self._charge(flight, live, error, alone=True)
        self._end(flight)

    patch.setattr(Committer, "row_failed_alone", all_charged)


@defect
def the_row_at_the_limit_is_tried_with_others(patch: pytest.MonkeyPatch) -> None:
    charge = Committer._charge

    def in_company(self: Committer, *args: Any, alone: bool) -> None:
        charge(self, *args, alone=False)

    patch.setattr(Committer, "_charge", in_company)


@defect
def the_neighbours_of_the_row_at_the_limit_are_lost(patch: pytest.MonkeyPatch) -> None:
    alone = Committer.row_failed_alone

    def only(self: Committer, flight: Flight, row: int, failed: Any) -> None:
        again = self._again
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(
                self,
                "_again",
                lambda call, live, closed=True, last=False: closed and again(call, live),
            )
            alone(self, flight, row, failed)

    patch.setattr(Committer, "row_failed_alone", only)


@defect
def a_batch_at_its_limit_is_charged_to_its_first_row(patch: pytest.MonkeyPatch) -> None:
    attempt = Committer.attempt

    def first(self: Committer, flight: Flight, failed: Any, *, charge: bool) -> None:
        if failed.type == "DeadlineExceeded" and charge:
            self.row_failed_alone(flight, 0, failed)
        else:
            attempt(self, flight, failed, charge=charge)

    patch.setattr(Committer, "attempt", first)


@defect
def what_waits_behind_a_batch_at_its_limit_is_charged(patch: pytest.MonkeyPatch) -> None:
    attempt = Committer.attempt

    def charged(self: Committer, flight: Flight, failed: Any, *, charge: bool) -> None:
        attempt(self, flight, failed, charge=charge or failed.type == "DeadlineExceeded")

    patch.setattr(Committer, "attempt", charged)


@defect
def a_worker_at_its_limit_goes_on(patch: pytest.MonkeyPatch) -> None:
    flush = Scheduler._flush

    def spared(self: Scheduler) -> list[Any]:
        return [one for one in flush(self) if not isinstance(one, EndWorker)]

    patch.setattr(Scheduler, "_flush", spared)


@defect
def a_worker_at_its_limit_is_not_replaced(patch: pytest.MonkeyPatch) -> None:
    start = Scheduler._start_worker

    def never(self: Scheduler, pool: int) -> None:
        if not self.counts.deadlines_passed:
            start(self, pool)

    patch.setattr(Scheduler, "_start_worker", never)


@defect
def a_deadline_of_a_batch_that_has_ended_counts(patch: pytest.MonkeyPatch) -> None:
    flights: dict[int, Flight] = {}
    take_off, passed = Workers.take_off, Scheduler._deadline_passed

    def remember(self: Workers, flight: Flight) -> None:
        flights[flight.batch] = flight
        take_off(self, flight)

    def apply(self: Scheduler, event: Any) -> None:
        flight = flights[event.batch]
        if event.batch not in self.workers.flights and event.worker in self.workers.pool_of:
            pool = self.plan.calls[flight.call].pool
            self.workers.lose(event.worker, pool)
            self._start_worker(pool)
        else:
            passed(self, event)

    patch.setattr(Workers, "take_off", remember)
    patch.setattr(Scheduler, "_deadline_passed", apply)


# -- recycling ------------------------------------------------------------------------------------


@defect
def a_worn_worker_gets_another_batch(patch: pytest.MonkeyPatch) -> None:
    wear = Workers.wear

    def late(self: Workers, worker: int) -> None:
        if self._served.get(worker) == self._lives[self.pool_of[worker]]:
            self._lives = [life and life + 1 for life in self._lives]
        else:
            wear(self, worker)

    patch.setattr(Workers, "wear", late)


@defect
def a_worn_worker_is_never_retired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_retire", lambda self, worker: None)


@defect
def a_worn_worker_is_retired_with_what_it_holds(patch: pytest.MonkeyPatch) -> None:
    def retire(self: Workers, worker: int) -> bool:
        if worker not in self.worn:
            return False
        for batch in list(self.held[worker]):
            self._forget_flight(batch)
        self._forget_worker(worker)
        return True

    patch.setattr(Workers, "retire", retire)


@defect
def a_worn_worker_is_replaced_only_when_it_goes(patch: pytest.MonkeyPatch) -> None:
    retire = Scheduler._retire

    def late(self: Scheduler, worker: int) -> None:
        if worker in self.workers.worn and not self.workers.held[worker]:
            self._start_worker(self.workers.pool_of[worker])
        retire(self, worker)

    patch.setattr(Scheduler, "_replace_worn", lambda self: self.workers.newly_worn.clear())
    patch.setattr(Scheduler, "_retire", late)


@defect
def a_worn_worker_that_dies_is_replaced_twice(patch: pytest.MonkeyPatch) -> None:
    lost = Scheduler._worker_lost

    def forgotten(self: Scheduler, event: Any) -> None:
        was_worn = event.worker in self.workers.worn
        lost(self, event)
        if was_worn:
            self._start_worker(event.pool)

    patch.setattr(Scheduler, "_worker_lost", forgotten)


@defect
def what_a_worn_worker_still_does_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    worn = Scheduler._worker_worn

    def impatient(self: Scheduler, event: Any) -> None:
        failed = AttemptFailed("WorkerDied", "worn")
        for batch in list(self.workers.held.get(event.worker, ())):
            flight = self.workers.land(batch)
            self._committer.attempt(flight, failed, charge=False)
        worn(self, event)

    patch.setattr(Scheduler, "_worker_worn", impatient)


# -- how many batches a worker may hold ------------------------------------------------------------


@defect
def a_worker_gets_one_batch_more_than_it_may_hold(patch: pytest.MonkeyPatch) -> None:
    may_hold = Workers.may_hold
    patch.setattr(Workers, "may_hold", lambda self, pool, most: may_hold(self, pool, most + 1))


@defect
def a_worker_never_may_hold_more(patch: pytest.MonkeyPatch) -> None:
    def stays(self: Workers, pool: int, most: int) -> None:
        self.most[pool] = most

    patch.setattr(Workers, "may_hold", stays)


@defect
def a_worker_that_may_hold_more_gets_it_though_it_is_worn(patch: pytest.MonkeyPatch) -> None:
    def all_of_them(self: Workers, pool: int, most: int) -> None:
        self.most[pool] = most
        self.spare[pool].clear()
        for worker, held in self.held.items():
            if self.pool_of[worker] == pool and 0 < len(held) < most:
                self.spare[pool].append(worker)

    patch.setattr(Workers, "may_hold", all_of_them)


@defect
def one_that_holds_more_than_it_may_gets_another_for_each_that_ends(
    patch: pytest.MonkeyPatch,
) -> None:
    land = Workers.land

    def refilled(self: Workers, batch: int) -> Flight:
        flight = land(self, batch)
        pool, held = self.pool_of[flight.worker], self.held[flight.worker]
        blocked = flight.worker in self.worn or flight.worker in self.sealed
        if held and not blocked and flight.worker not in self.spare[pool]:
            self.spare[pool].append(flight.worker)
        return flight

    patch.setattr(Workers, "land", refilled)


# -- paused Calls ---------------------------------------------------------------------------------


@defect
def a_call_whose_backend_is_down_is_not_paused(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breakers, "told", lambda self, flight, report: Verdict())


@defect
def a_paused_call_gets_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breakers, "limit", lambda self, call, most: most)


@defect
def an_outage_is_charged_while_the_call_is_paused(patch: pytest.MonkeyPatch) -> None:
    told = Breakers.told

    def charging(self: Breakers, *args: Any) -> Verdict:
        return replace(told(self, *args), charge=True)

    patch.setattr(Breakers, "told", charging)


@defect
def a_lost_probe_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breakers, "came_to_nothing", lambda self, call, batch: False)


@defect
def a_call_stays_paused_when_its_backend_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breakers, "_close", lambda self, breaker: Verdict())


@defect
def each_worker_of_a_dead_node_is_a_failed_start(patch: pytest.MonkeyPatch) -> None:
    failed = Workers._start_failed
    patch.setattr(Workers, "_start_failed", lambda self, pool, node: failed(self, pool, ""))
