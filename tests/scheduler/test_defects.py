"""The simulation notices each defect of the modules `*defects.py` here in a few examples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from rayorch_prefect.program import Plan
from tests.scheduler.doom_defects import DEFECTS
from tests.scheduler.recipes import Recipe, build, numbered_recipe
from tests.scheduler.test_state_machine import simulate

MOST_EXAMPLES = 500
# A defect shows as a broken assertion or a crash of the Scheduler; these would be the patch's own.
NOT_A_CATCH = (TypeError, AttributeError, NameError)


@cache
def example(number: int) -> tuple[Plan | None, Recipe]:
    recipe = numbered_recipe(number)
    return build(recipe), recipe


def examples(n: int) -> Iterator[tuple[Plan, Recipe]]:
    for number in range(n):
        plan, recipe = example(number)
        if plan is not None:
            yield plan, recipe


def caught_after(n: int) -> tuple[int, Exception | None]:
    """How many examples ran before one went wrong, and how."""
    for number, (plan, recipe) in enumerate(examples(n)):
        try:
            simulate(plan, recipe)
        except NOT_A_CATCH:
            raise
        except Exception as wrong:
            return number, wrong
    return n, None


def test_without_a_defect_nothing_is_noticed() -> None:
    for plan, recipe in examples(150):
        simulate(plan, recipe)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch)
    number, wrong = caught_after(MOST_EXAMPLES)
    monkeypatch.undo()
    print(f"{name}: example {number}: {type(wrong).__name__}: {str(wrong)[:90]}")
    assert wrong is not None
