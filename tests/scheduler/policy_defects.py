"""Defects of policies, beside those of the other `*defects.py`."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.scheduler.by_parent import ByParent
from tests.scheduler.bound_defects import DEFECTS
from tests.scheduler.defects import defect

__all__ = ["DEFECTS"]


@defect
def what_is_held_back_is_never_sent(patch: pytest.MonkeyPatch) -> None:
    take_open = ByParent.take_open

    def ahead(self: ByParent, call: int, limit: int, *, ahead: bool = False) -> Any:
        return take_open(self, call, limit, ahead=True)

    patch.setattr(ByParent, "take_open", ahead)


@defect
def what_is_held_back_waits_at_workers(patch: pytest.MonkeyPatch) -> None:
    take_open = ByParent.take_open

    def not_ahead(self: ByParent, call: int, limit: int, *, ahead: bool = False) -> Any:
        return take_open(self, call, limit)

    patch.setattr(ByParent, "take_open", not_ahead)


@defect
def what_is_held_back_goes_first(patch: pytest.MonkeyPatch) -> None:
    take_from = ByParent._take_from

    def backwards(self: ByParent, call: int, heap: Any, limit: int) -> Any:
        other = self._held_back[call] if heap is self._free[call] else self._free[call]
        return take_from(self, call, other, limit)

    patch.setattr(ByParent, "_take_from", backwards)


@defect
def a_batch_that_was_not_full_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ByParent, "_put_back", lambda self, call, taken: None)


@defect
def a_batch_of_one_parent_is_filled_up(patch: pytest.MonkeyPatch) -> None:
    take_open = ByParent.take_open

    def filled(self: ByParent, call: int, limit: int, *, ahead: bool = False) -> Any:
        taken = take_open(self, call, limit, ahead=ahead)
        left = limit - sum(end - first for _, first, end in taken)
        return taken + (take_open(self, call, left, ahead=ahead) if left else [])

    patch.setattr(ByParent, "take_open", filled)


@defect
def work_that_came_back_stays_in_flight(patch: pytest.MonkeyPatch) -> None:
    """So that a parent is held back for ever."""
    landed = ByParent.landed

    def uncounted(self: ByParent, call: int, ranges: Any) -> None:
        landed(self, call, ranges)
        for line, start, stop in self._all_pieces(call, ranges):
            line.in_flight += stop - start
            self._put(line)

    patch.setattr(ByParent, "landed", uncounted)


@defect
def who_is_held_back_stays_so(patch: pytest.MonkeyPatch) -> None:
    """What came back is counted, but its parent is not put where it belongs now."""
    landed, put = ByParent.landed, ByParent._put

    def left(self: ByParent, call: int, ranges: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ByParent, "_put", lambda self, line: line.held_back or put(self, line))
            landed(self, call, ranges)

    patch.setattr(ByParent, "landed", left)
