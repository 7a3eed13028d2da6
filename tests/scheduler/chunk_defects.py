"""Defects of expansions that arrive in chunks, beside those of `worker_defects.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rayorch_prefect.scheduler.chunks import OpenMembers
from rayorch_prefect.scheduler.dispatch import Dispatcher
from rayorch_prefect.scheduler.items import ListItem
from rayorch_prefect.scheduler.lineage import Lineage
from rayorch_prefect.scheduler.settling import FixedPoint
from tests.scheduler import worker_defects
from tests.scheduler.defects import DEFECTS, defect

__all__ = ["DEFECTS", "worker_defects"]


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


@defect
def a_reduce_does_not_wait_for_the_last_chunk(patch: pytest.MonkeyPatch) -> None:
    arrive = OpenMembers.arrive

    def closed(self: OpenMembers, domain: int, parent: int, n: int) -> int:
        fresh = not self._mb.lineage.size[domain][parent]
        first = arrive(self, domain, parent, n)
        for number in self._wiring.joins_from[domain] if fresh else ():
            self._mb.pending[number][parent] -= 1
        return first

    patch.setattr(OpenMembers, "arrive", closed)


@defect
def children_of_a_failed_expansion_go_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenMembers, "unfinished", _nothing)


@defect
def children_of_a_failed_expansion_are_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lineage, "has_failed", lambda self, domain, parent: False)


@defect
def another_try_begins_from_the_first_child(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_taken", _nothing)


@defect
def later_chunks_take_the_place_of_earlier_ones(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ListItem, "joined", lambda self, more: more)


@defect
def a_broadcast_is_seen_by_the_first_chunk_alone(patch: pytest.MonkeyPatch) -> None:
    settle = FixedPoint._settle_new_members

    def unseen(self: FixedPoint, domain: int, opened: Any) -> None:
        fresh = [one for one in opened if self._mb.lineage.ordinal(domain, one[1]) == 0]
        with pytest.MonkeyPatch.context() as inner:
            if len(fresh) < len(opened):
                inner.setattr(FixedPoint, "_broadcast_to", lambda *_: None)
            settle(self, domain, opened)

    def arrived(self: FixedPoint, call: Any, parent: int, n: int) -> None:
        for domain in call.chunked:
            first = self._open.arrive(domain, parent, n)
            unseen(self, domain, [(parent, first, first + n)])

    patch.setattr(FixedPoint, "members_arrived", arrived)
