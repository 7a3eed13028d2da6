"""Reservation policies, each in a scene; that none changes an outcome is the state machine's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rayorch_prefect.errors import UsageError
from rayorch_prefect.program import F, program
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.policies import POLICIES, Canary, ParentWork, Policy, ranked
from tests.scheduler.scenes import BOOM, Scene, named


def pages(batch_size: int = 4, replicas: int = 1) -> Any:
    def read(source: Any) -> Any:
        page = F.expand(source, domain="page")
        return F.reduce(named("Read", batch_size=batch_size, replicas=replicas)(page))

    return read


def sent(policy: Any, children: list[int], **options: Any) -> list[list[int]]:
    """The parents of each batch's rows, as one worker gets them."""
    scene = Scene(pages(**options), policy=policy, most_held=1)
    scene.admit(len(children), shapes=children)
    begins = [sum(children[:row]) for row in range(len(children))]
    found: list[list[int]] = []
    while scene.sent:
        order = scene.give()
        rows = [at for _, first, end in order.ranges for at in range(first, end)]
        found.append([max(row for row, at in enumerate(begins) if at <= one) for one in rows])
    assert len(scene.parents) == len(children)
    return found


def test_fifo_is_the_order_of_arrival() -> None:
    assert sent("fifo", [3, 2, 4]) == [[0, 0, 0, 1], [1, 2, 2, 2], [2]]


def test_unordered_takes_the_newest_parents() -> None:
    assert sent("unordered", [3, 2, 4]) == [[2, 2, 2, 2], [1, 1, 0, 0], [0]]


def test_single_parent_mixes_no_parents() -> None:
    assert sent("single_parent", [3, 6, 1]) == [[0, 0, 0], [1, 1, 1, 1], [1, 1], [2]]


def test_longest_first_takes_what_has_most_to_go() -> None:
    # After the first batch both have 5 to go, and the older one is first.
    assert sent("longest_first", [5, 9, 2]) == [[1] * 4, [0] * 4, [1] * 4, [2, 2, 0, 1]]


def test_canary_sends_twice_as_many_with_each_round() -> None:
    found = sent(Canary(first=1), [20, 9, 9], batch_size=3)
    assert found[0] == [0, 1, 2]
    assert found[1] == [0, 0, 1]
    assert found[2] == [0, 0, 0]


def test_canary_fills_up_the_batch_of_a_worker_that_would_idle() -> None:
    assert sent(Canary(first=1), [9, 1], batch_size=4)[0] == [0, 1, 0, 0]


def test_canary_sends_nothing_ahead_that_it_holds_back() -> None:
    scene = Scene(pages(batch_size=2), policy=Canary(first=1), most_held=2)
    scene.admit(2, shapes=[9, 1])
    assert scene.ranges() == [((0, 1), (9, 10))]
    scene.give()
    assert scene.ranges() == [((1, 3),)]


class SmallestFirst:
    """A policy of somebody's own: the one of the protocol's documentation."""

    one_parent = False

    def rank(self, work: ParentWork) -> float:
        return work.size

    def most(self, work: ParentWork) -> int | None:
        return None


def test_a_policy_of_ones_own() -> None:
    assert sent(SmallestFirst(), [3, 1, 2]) == [[1, 2, 2, 0], [0, 0]]


class Broken(SmallestFirst):
    def rank(self, work: ParentWork) -> float:
        return [][work.size]


class Negative(SmallestFirst):
    def most(self, work: ParentWork) -> int | None:
        return -1


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Broken(), "policy Broken raised IndexError"),
        (Negative(), r"policy Negative: most\(\) gave -1"),
    ],
)
def test_a_policy_that_gives_no_answer_is_named(policy: Policy, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ranked(policy, ParentWork(0, 0, 0, 0))


def test_a_retry_under_a_policy_stays_with_its_suspects() -> None:
    scene = Scene(pages(batch_size=4), policy="canary", most_held=1)
    scene.admit(3, shapes=[3, 2, 4])
    scene.fail()
    assert scene.ranges() == [((0, 2),)]


def test_a_row_that_met_its_backend_down_lets_other_parents_go_first() -> None:
    scene = Scene(pages(batch_size=1), policy="longest_first", most_held=1)
    scene.admit(2, shapes=[1, 1])
    scene.give(failures={0: replace(BOOM, backend=True)})
    assert scene.ranges() == [((1, 2),)]


@pytest.mark.parametrize("asked", ["lifo", None, 3, SmallestFirst, object()])
def test_what_is_no_policy_is_refused(asked: Any) -> None:
    with pytest.raises(UsageError, match=f"expected one of {', '.join(POLICIES)}"):
        Scheduler(program(pages()).plan, policy=asked)
