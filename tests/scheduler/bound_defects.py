"""Defects of bounds, beside those of the other `*defects.py`."""

from __future__ import annotations

import pytest

from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.credits import Credits
from rayorch_prefect.scheduler.dispatch import Dispatcher
from tests.scheduler.defects import defect
from tests.scheduler.lingering_defects import DEFECTS

__all__ = ["DEFECTS"]


@defect
def a_bound_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Credits, "room", lambda self, call, want: want)


@defect
def values_in_the_making_do_not_count(patch: pytest.MonkeyPatch) -> None:
    room = Credits.room

    def as_if_none_flew(self: Credits, call: int, want: int) -> int:
        counts = self.values._counts
        flying = [one.in_flight for one in counts]
        for one in counts:
            one.in_flight = 0
        try:
            return room(self, call, want)
        finally:
            for one, n in zip(counts, flying, strict=True):
                one.in_flight = n

    patch.setattr(Credits, "room", as_if_none_flew)


@defect
def what_a_bound_holds_back_never_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_send_past", lambda self: iter(()))


@defect
def what_a_bound_holds_back_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    """Past the bound although an owner is about to let go of a parent."""
    patch.setattr(Dispatcher, "something_comes", lambda self: False)


@defect
def several_parents_go_past_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_at_head_of", lambda self, call, number, root: 2)


@defect
def released_values_still_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Credits, "released", lambda self, slot, n: None)


@defect
def what_a_late_report_brought_counts(patch: pytest.MonkeyPatch) -> None:

    let_go = Scheduler._let_go

    def counted(self: Scheduler, report: object) -> None:
        if hasattr(report, "outputs"):
            self.credits.values.held[0] += 1
        let_go(self, report)  # type: ignore[arg-type]

    patch.setattr(Scheduler, "_let_go", counted)
