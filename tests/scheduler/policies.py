"""What must hold of policies after each event, counted anew from the flights and tables."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from typing import Any

from rayorch_prefect.model.events import DispatchBatch, Instruction
from rayorch_prefect.model.outcomes import Outcome
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.policies import (
    FIFO,
    POLICIES,
    Canary,
    ParentWork,
    Policy,
    policy_of,
)

# (microbatch, row)
_Parent = tuple[int, int]


class Whimsical:
    """A policy of somebody's own, with no reason in it."""

    one_parent = False

    def rank(self, work: ParentWork) -> float:
        return zlib.crc32(f"{work}".encode()) % 7

    def most(self, work: ParentWork) -> int | None:
        return (None, 1, 2, 0)[zlib.crc32(f"{work.call} {work.row} {work.done}".encode()) % 4]


# So few that the small parents of random Programs have more.
CANARIES = 1
OWN = "own"
DRAWN = (*POLICIES, OWN)


def drawn(name: str) -> str | Policy:
    """The policy of a Recipe."""
    if name == "canary":
        return Canary(CANARIES)
    return Whimsical() if name == OWN else name


def check(scheduler: Scheduler, policy: str, held: dict[int, int], told: list[Instruction]) -> None:
    """Raises AssertionError where batches are not what the policy wants. `held` says how many
    batches each worker had before these instructions. Batches of Grains that came back, which may
    have to stay together, and those that may have gone past a bound are left alone."""
    orders = [one for one in told if isinstance(one, DispatchBatch)]
    if not orders or policy == FIFO:
        return
    asked = policy_of(drawn(policy))
    assert asked is not None
    _check_lines(scheduler, asked)
    past = len(orders) == len(scheduler.workers.flights)
    for order in orders:
        if asked.one_parent:
            assert len(_rows(scheduler, order)) == 1, "a batch has Grains of several parents"
        pool = scheduler.plan.pools[scheduler.plan.calls[order.call].pool]
        if not order.generation and not past:
            _check_held_back(scheduler, asked, order, held[order.worker] >= pool.concurrency)
        held[order.worker] += 1


def _lines(scheduler: Scheduler, call: int) -> list[Any]:
    known = scheduler.queues.__dict__["_lines"][call]
    return [line for lines in known.values() for line in lines.values()]


def _check_lines(scheduler: Scheduler, policy: Policy) -> None:
    """What a policy is told is so, and who is held back is so by what it says."""
    for call in scheduler.plan.calls:
        flying, done = _flying(scheduler, call.id), _done(scheduler, call.id)
        for line in _lines(scheduler, call.id):
            one = line.microbatch, line.row
            assert not line.drawn
            assert line.in_flight == flying[one], "rows in flight are miscounted"
            assert line.done == done[one], "what came back is miscounted"
            if line.place:
                assert line.held_back == (_room(policy, line) <= 0)


def _room(policy: Policy, line: ParentWork) -> float:
    most = policy.most(line)
    return math.inf if most is None else most - line.in_flight


def _check_held_back(
    scheduler: Scheduler, policy: Policy, order: DispatchBatch, ahead: bool
) -> None:
    """More than a parent may have goes only to a worker that would idle, and only if no other
    parent's Grain could have gone in its place."""
    lines = _lines(scheduler, order.call)
    room = {(line.microbatch, line.row): _room(policy, line) for line in lines}
    if any(room[one] < 0 for one in _rows(scheduler, order)):
        assert not ahead, "what is held back waits at a worker"
        ready = _ready(scheduler, order.call)
        assert not [one for one in ready if room[one] > 0], "held back, and yet others are ready"


def _rows(scheduler: Scheduler, order: DispatchBatch) -> Counter[_Parent]:
    domain = scheduler.plan.calls[order.call].domain
    return Counter(
        (number, scheduler.runs[number].mb.root_of(domain, entity))
        for number, first, end in order.ranges
        for entity in range(first, end)
        if number in scheduler.runs
    )


def _flying(scheduler: Scheduler, call: int) -> Counter[_Parent]:
    domain, found = scheduler.plan.calls[call].domain, Counter[_Parent]()
    for flight in scheduler.workers.flights.values():
        for number, first, end in flight.ranges if flight.call == call else ():
            if number in scheduler.runs:
                root_of = scheduler.runs[number].mb.root_of
                found.update((number, root_of(domain, one)) for one in range(first, end))
    return found


def _done(scheduler: Scheduler, call: int) -> Counter[_Parent]:
    domain, port = scheduler.plan.calls[call].domain, scheduler.plan.calls[call].outputs[0]
    return Counter(
        (number, run.mb.root_of(domain, entity))
        for number, run in scheduler.runs.items()
        for entity, found in enumerate(run.mb.items.outcome[port])
        if found == Outcome.PRESENT
    )


def _ready(scheduler: Scheduler, call: int) -> list[_Parent]:
    """Parents with READY Grains that need not stay together."""
    closed = {
        (number, entity)
        for entry in scheduler.queues._queues[call]
        for number, first, end in entry.ranges
        for entity in range(first, end)
    }
    found: list[_Parent] = []
    for number, run in scheduler.runs.items():
        for entity, phase in enumerate(run.mb.grains.phase[call]):
            if phase == Phase.READY and (number, entity) not in closed:
                found.append((number, run.mb.root_of(scheduler.plan.calls[call].domain, entity)))
    return found
