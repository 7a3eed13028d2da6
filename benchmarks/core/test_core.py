"""What the pure Scheduler costs, as ratios: `make bench-core`."""

from __future__ import annotations

import pytest

from benchmarks.core.conftest import Held
from benchmarks.core.runs import BLOT, POISON, Instant, forgiven, pages
from benchmarks.driver_cost import page_counts

LONG_TAILED = page_counts(60_000)


@pytest.mark.parametrize(
    "counts", [LONG_TAILED, [1] * 8_000, [60_000]], ids=["long-tailed", "single", "one-parent"]
)
def test_all_succeed(held: Held, counts: list[int]) -> None:
    held(lambda: Instant(pages.plan, counts), Instant.run)


def test_groups_are_barred(held: Held) -> None:
    held(lambda: Instant(pages.plan, LONG_TAILED, POISON), Instant.run)


def test_rows_fail_and_are_forgiven(held: Held) -> None:
    held(lambda: Instant(forgiven.plan, LONG_TAILED, BLOT), Instant.run)
