"""Defects of doomed work, beside those of the other `*defects.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rayorch_prefect.program.plan import OnFailure
from rayorch_prefect.scheduler import core, settling
from rayorch_prefect.scheduler.dispatch import Dispatcher
from rayorch_prefect.scheduler.doom import unfinished
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.settling import FixedPoint
from rayorch_prefect.scheduler.wiring import Join, Reaction, Wiring
from tests.scheduler.defects import defect
from tests.scheduler.policy_defects import DEFECTS

__all__ = ["DEFECTS"]


@defect
def doomed_parents_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FixedPoint, "doom", lambda self, row, cause: None)


@defect
def what_a_reduce_forgives_dooms(patch: pytest.MonkeyPatch) -> None:
    def always(self: Wiring, dooms: list[int], join: Join) -> int:
        return max(dooms[result] for result in join.results)

    patch.setattr(Wiring, "_doom_of_reduce", always)


@defect
def a_scope_below_a_reduce_dooms(patch: pytest.MonkeyPatch) -> None:
    doom_of_reduce = Wiring._doom_of_reduce

    def of_one(self: Wiring, dooms: list[int], join: Join) -> int:
        if join.on_failure in (OnFailure.SKIP, OnFailure.KEEP):
            depth = self.depth[join.domain]
            return depth + 1 if max(dooms[result] for result in join.results) >= depth else -1
        return doom_of_reduce(self, dooms, join)

    patch.setattr(Wiring, "_doom_of_reduce", of_one)


@defect
def what_a_coalesce_replaces_dooms(patch: pytest.MonkeyPatch) -> None:
    beyond = Wiring._doom_beyond

    def like_a_call(self: Wiring, dooms: list[int], reaction: Reaction, number: int) -> int:
        if reaction is Reaction.COALESCE:
            return dooms[number]
        return beyond(self, dooms, reaction, number)

    patch.setattr(Wiring, "_doom_beyond", like_a_call)


@defect
def doom_reaches_other_parents(patch: pytest.MonkeyPatch) -> None:
    def all_rows(mb: Microbatch, row: int) -> Iterator[tuple[int, int]]:
        for one in range(mb.rows):
            yield from unfinished(mb, one)

    patch.setattr(settling, "unfinished", all_rows)


@defect
def only_what_is_ready_is_doomed(patch: pytest.MonkeyPatch) -> None:
    def ready(mb: Microbatch, row: int) -> Iterator[tuple[int, int]]:
        for call, entity in unfinished(mb, row):
            if mb.grains.phase[call][entity] != Phase.IN_FLIGHT:
                yield call, entity

    patch.setattr(settling, "unfinished", ready)


@defect
def workers_are_not_told_of_doom(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core, "told_of_doom", lambda wiring, mb, flights: iter(()))


@defect
def batches_are_asked_back_that_matter(patch: pytest.MonkeyPatch) -> None:
    """One whose worker may have been asked already, or that is not the worker's to give."""

    def everything(self: Dispatcher) -> Any:
        return map(self._ask, list(self._workers.flights.values()))

    patch.setattr(Dispatcher, "ask_back_useless", everything)
