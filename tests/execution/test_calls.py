"""Calls to Ray that are waited for by the thread that made them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError

from rayorch_prefect.execution.calls import Calls

pytestmark = pytest.mark.usefixtures("cluster")


class Echo:
    def say(self, value: Any, wait_s: float = 0.0) -> Any:
        time.sleep(wait_s)
        if isinstance(value, str):
            raise ValueError(value)
        return value


def echo() -> Any:
    return ray.remote(Echo).options(num_cpus=0).remote()


def test_all_that_are_over_come_in_their_order_and_each_with_its_own_end() -> None:
    calls = Calls()
    ends: list[Any] = []
    actor = echo()
    for value in (1, "bad", 2):
        reference = actor.say.remote(value)
        calls.expect(reference, lambda *end, of=value: ends.append((of, *end)))
    ray.wait([reference])  # one actor: the others are over, too
    over = calls.ended(0)
    assert (len(over), len(calls)) == (3, 0)
    assert not ends  # nothing is done before it is asked to be
    while over:
        over.popleft()()
    assert [(of, given) for of, given, _ in ends] == [(1, 1), ("bad", None), (2, 2)]
    assert [isinstance(error, RayTaskError) for *_, error in ends] == [False, True, False]
    ray.kill(actor)


def test_it_waits_for_one_at_most_so_long() -> None:
    calls = Calls()
    ends: list[Any] = []
    assert not calls.ended(60)  # for none
    quick, slow = echo(), echo()
    ray.get([quick.say.remote(0), slow.say.remote(0)])
    calls.expect(slow.say.remote(1, 600.0), lambda *end: ends.append(end))
    assert not calls.ended(0.01)
    calls.expect(quick.say.remote(2, 0.1), lambda *end: ends.append(end))
    (step,) = calls.ended(60)
    step()
    assert ends == [(2, None)]
    ray.kill(slow)
    ray.kill(quick)
