"""Random Programs under random schedules come to what the contract says.

Each example draws a Program, the behaviour of its stages and a schedule (`recipes.py`), runs it
(`simulation.py`), compares every parent with the reference (`evaluator.py`) and counts the tables
anew after each event (`invariants.py`).

A GroupFailure leaves it to the schedule which siblings had committed before. Usually nothing
above shows that: the group's reduce fails in any case, with the same scope. Two exceptions are
holes of the contract, met here as parents whose verdict is open and that are only checked to end
and to leave nothing behind:

- an F.coalesce below the scope of the failure may take a committed sibling, or not;
- an Item that depends on a barred one and on one that failed with a higher scope takes the cause
  and scope of the first in declared order, which may be either, so that a forgiving reduce above
  may forgive it or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings

from rayorch_prefect.program import Plan
from tests.scheduler.recipes import (
    Recipe,
    SeededBehaviour,
    Weights,
    build,
    numbered_recipe,
    recipes,
)
from tests.scheduler.simulation import Simulation
from tests.scheduler.virtual_stages import Statistics

EXAMPLES = 700


def shards(count: int) -> list[Any]:
    """Numbers of seeds, the later half for `make test-all`."""
    quick = (count + 1) // 2
    return [*range(quick), *(pytest.param(i, marks=pytest.mark.slow) for i in range(quick, count))]


@dataclass
class Tally:
    """What the examples of one shard were like."""

    examples: int = 0
    refused: int = 0
    two_domains: int = 0
    eventful: int = 0
    parents: int = 0
    open: int = 0
    gaps: int = 0
    late: int = 0
    skipped: int = 0
    forgotten: int = 0
    taken_back: int = 0
    deadlines: int = 0
    row_deadlines: int = 0
    suspects: int = 0
    lingers: int = 0
    recycled: int = 0
    worn: int = 0
    pauses: int = 0
    chunks: int = 0
    cut_short: int = 0
    let_past: int = 0
    doomed: int = 0

    def add(self, plan: Plan, met: Statistics) -> None:
        self.examples += 1
        self.two_domains += len(plan.domains) > 2
        self.eventful += met.eventful()
        self.parents += sum(met.parents.values())
        self.open += met.open
        self.gaps += met.gaps
        self.late += met.late
        self.skipped += met.skipped
        self.forgotten += met.forgotten
        self.taken_back += met.taken_back
        self.deadlines += met.deadlines
        self.row_deadlines += met.row_deadlines
        self.suspects += met.suspects
        self.lingers += met.lingers
        self.recycled += met.recycled
        self.worn += met.worn
        self.pauses += met.pauses
        self.chunks += met.chunks
        self.cut_short += met.cut_short
        self.let_past += met.let_past
        self.doomed += met.doomed


def simulate(plan: Plan, recipe: Recipe, breach: float = 0.0) -> Statistics:
    does = SeededBehaviour(plan, recipe.seed, recipe.weights)
    return Simulation(
        plan,
        does,
        seed=recipe.seed,
        chaos=recipe.chaos,
        microbatches=recipe.microbatches,
        breach=breach,
        know_children=not recipe.weights.group and not breach,
        policy=recipe.policy,
    ).run()


def quick(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )


@pytest.mark.parametrize("shard", shards(3))
def test_every_schedule_comes_to_what_the_contract_says(shard: int) -> None:
    tally = Tally()

    @seed(shard)
    @quick(EXAMPLES)
    @given(recipes())
    def example(recipe: Recipe) -> None:
        plan = build(recipe)
        if plan is None:
            tally.refused += 1
            return
        tally.add(plan, simulate(plan, recipe))

    example()
    print(tally)
    assert tally.examples >= EXAMPLES * 0.95
    assert tally.two_domains >= tally.examples * 0.3
    assert tally.eventful >= tally.examples * 0.3
    assert tally.open <= tally.parents * 0.01
    assert tally.late
    assert tally.gaps
    assert tally.skipped
    assert tally.forgotten
    assert tally.taken_back
    assert tally.suspects
    assert tally.lingers
    assert tally.deadlines > tally.row_deadlines > 0
    assert tally.recycled > tally.worn > 0
    assert tally.pauses
    assert tally.chunks > tally.cut_short > 0
    assert tally.let_past > tally.examples
    assert tally.doomed > tally.examples * 0.3


@pytest.mark.parametrize("shard", shards(2))
def test_a_broken_contract_fails_the_parents_of_its_batch_and_nobody_else(shard: int) -> None:
    met: list[Statistics] = []

    @seed(100 + shard)
    @quick(EXAMPLES // 2)
    @given(recipes())
    def example(recipe: Recipe) -> None:
        plan = build(recipe)
        if plan is not None:
            met.append(simulate(plan, recipe, breach=0.15))

    example()
    assert sum(one.breaches > 0 for one in met) >= len(met) * 0.25
    assert sum(one.parents.get("COMPLETED", 0) for one in met if one.breaches) >= len(met) * 0.1


def test_wide_parents_too() -> None:
    """Ranges of many Entities are handled by slices, small ones seldom are."""
    assert sum(simulate(*wide(70_000 + number)).gaps for number in range(20))


def test_workers_that_hold_several_short_batches() -> None:
    held: list[int] = []
    for number in range(60):
        plan, recipe = wide(71_000 + number)
        small = tuple(replace(pool, batch_size=1, replicas=1) for pool in plan.pools)
        held.append(simulate(replace(plan, pools=small), recipe).most_held)
    assert sum(most > 2 for most in held) >= 4
    assert max(held) > 4


def wide(number: int) -> tuple[Plan, Recipe]:
    """A Program and its recipe, with many children and few failures."""
    recipe = numbered_recipe(number)
    fewer = {
        name: getattr(recipe.weights, name) // 4
        for name in ("record", "group", "flaky", "exhausted")
    }
    weights = Weights(**fewer, most_children=7)
    wider = replace(recipe, weights=weights, microbatches=(4, 3))
    plan = build(wider)
    return (plan, wider) if plan is not None else wide(number + 1_000)
