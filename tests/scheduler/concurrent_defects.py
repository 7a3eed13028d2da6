"""Defects of workers that have several rows in flight, beside those of `worker_defects.py`."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.model.reports import RowFailure
from rayorch_prefect.scheduler import commit
from rayorch_prefect.scheduler.commit import Committer
from rayorch_prefect.scheduler.concurrent import ConcurrentRows, companies
from rayorch_prefect.scheduler.workers import Flight, Workers
from tests.scheduler.chunk_defects import DEFECTS
from tests.scheduler.defects import defect

__all__ = ["DEFECTS"]


@defect
def all_suspects_are_charged(patch: pytest.MonkeyPatch) -> None:
    def charged(self: Committer, flights: list[Flight], failed: Any, *, charge: bool) -> None:
        for flight in flights:
            error = RowFailure(None, failed.type, failed.message)
            for live in self._tried_in_vain(flight):
                self._charge(flight, live, error, alone=True)
            self._end(flight)

    patch.setattr(Committer, "suspects", charged)


@defect
def a_culprit_that_stands_alone_is_never_charged(patch: pytest.MonkeyPatch) -> None:
    suspects = Committer.suspects

    def spared(self: Committer, flights: list[Flight], failed: Any, *, charge: bool) -> None:
        suspects(self, flights, failed, charge=charge and len(flights) > 1)

    patch.setattr(Committer, "suspects", spared)


@defect
def suspects_are_not_halved(patch: pytest.MonkeyPatch) -> None:
    def whole(flights: list[Flight], *, halve: bool) -> list[list[Flight]]:
        return companies(flights, halve=False)

    patch.setattr(commit, "companies", whole)


@defect
def suspects_mix_with_others(patch: pytest.MonkeyPatch) -> None:
    def mixed(self: Committer, flights: list[Flight], failed: Any, *, charge: bool) -> None:
        if len(flights) == 1:
            self.attempt(flights[0], failed, charge=charge)
        else:
            for flight in flights:
                self.attempt(flight, failed, charge=False)

    patch.setattr(Committer, "suspects", mixed)


@defect
def suspects_of_a_preempted_worker_are_suspects_no_more(patch: pytest.MonkeyPatch) -> None:
    lost = Committer.rows_lost

    def forgotten(self: Committer, flights: Any, failed: Any, charge: bool, _: bool) -> None:
        lost(self, flights, failed, charge, False)

    patch.setattr(Committer, "rows_lost", forgotten)


@defect
def others_join_a_company(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Workers, "seal", lambda self, worker, seal: None)


@defect
def a_worker_that_had_a_company_stays_sealed(patch: pytest.MonkeyPatch) -> None:
    class Kept(dict[int, Any]):
        def pop(self, worker: int, *_: Any) -> Any:
            return None

    ready = Workers.ready

    def keeping(self: Workers, worker: int, pool: int) -> None:
        self.sealed = Kept(self.sealed)
        ready(self, worker, pool)

    patch.setattr(Workers, "ready", keeping)


@defect
def rows_wait_at_a_worker_while_another_has_a_place(patch: pytest.MonkeyPatch) -> None:
    def fullest(self: ConcurrentRows, pool: int) -> int | None:
        workers = self._workers
        there = [*workers.idle[pool], *workers.spare[pool]]
        return max(there, key=lambda one: len(workers.held[one]), default=None)

    patch.setattr(ConcurrentRows, "_roomiest", fullest)


@defect
def rows_that_wait_are_never_asked_back(patch: pytest.MonkeyPatch) -> None:
    free = Workers.free

    def none(self: Workers, pool: int) -> int:
        return 0 if self._concurrent[pool] else free(self, pool)

    patch.setattr(Workers, "free", none)


@defect
def only_the_oldest_row_counts_as_started(patch: pytest.MonkeyPatch) -> None:
    def oldest(self: Committer, flights: list[Flight], failed: Any, charge: bool, _: bool) -> None:
        for place, flight in reversed(list(enumerate(flights))):
            self.attempt(flight, failed, charge=charge and not place)

    patch.setattr(Committer, "rows_lost", oldest)
