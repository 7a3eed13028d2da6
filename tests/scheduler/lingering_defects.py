"""Defects of Calls that linger, beside those of `concurrent_defects.py`."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.scheduler.lingering import Lingering
from rayorch_prefect.scheduler.queues import ReadyQueues
from tests.scheduler.concurrent_defects import DEFECTS
from tests.scheduler.defects import defect

__all__ = ["DEFECTS"]


@defect
def a_part_filled_batch_does_not_linger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lingering, "holds_back", lambda self, call: False)


@defect
def a_call_lingers_for_what_cannot_come(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lingering, "more_may_come", lambda self, call: True)


@defect
def a_call_lingers_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lingering, "passed", lambda self, call, turn: None)


@defect
def nobody_is_asked_to_end_a_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lingering, "take_asked", lambda self: [])


@defect
def the_end_of_an_earlier_wait_ends_this_one(patch: pytest.MonkeyPatch) -> None:
    passed = Lingering.passed

    def any_turn(self: Lingering, call: int, turn: int) -> None:
        passed(self, call, self._turns[call])

    patch.setattr(Lingering, "passed", any_turn)


@defect
def closed_batches_linger(patch: pytest.MonkeyPatch) -> None:
    may_wait = Lingering._may_wait

    def whatever_is_closed(self: Lingering, call: int) -> bool:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ReadyQueues, "has_closed", lambda *_: False)
            return may_wait(self, call)

    patch.setattr(Lingering, "_may_wait", whatever_is_closed)


@defect
def a_wait_that_is_over_holds_for_later_batches(patch: pytest.MonkeyPatch) -> None:
    def kept(self: Lingering, call: int) -> Any:
        self._waits.discard(call)

    patch.setattr(Lingering, "sent", kept)
