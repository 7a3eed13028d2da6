"""Documents like the paper's: its totals and extremes, and a seeded long tail between them."""

from __future__ import annotations

import random

from benchmarks.paper import published
from rayorch_prefect.simulation.load import Load, Page, lognormal, poisoned, scaled

SIGMA = 1.2  # of the log-normal page counts; the paper tells their total and extremes alone


def mineru() -> Load:
    """3,689 documents, 174,744 pages, the longest of 427."""
    documents, pages, most = published.MINERU
    return Load(scaled(lognormal(100, SIGMA, documents, seed=1), pages, most))


def videos() -> Load:
    """27,091 videos, 104,952 clips; the longest has the 120 of the paper's figure."""
    clips = scaled(lognormal(100, 1.0, published.VIDEO[0], seed=2), published.VIDEO[1], 120)
    return Load(clips)


def failure(page: Page | None) -> Load:
    """1,885 documents, 45,507 pages, of which the 99 largest hold 23,613 (187 to 427 each), the
    others 1 to 23; `page` of those 99 fails."""
    pick = random.Random(33)
    poisoned_pages, most = published.POISONED_PAGES, published.MINERU[2]
    large = [187 + round(240 * (1 - (at / 98) ** 0.42)) for at in range(published.POISONED)]
    small = [pick.randint(1, 23) for _ in range(published.FAILURE_DOCUMENTS - len(large))]
    _brought_to(large, poisoned_pages, 187, most)
    _brought_to(small, published.FAILURE_PAGES - poisoned_pages, 1, 23)
    counts = [*large, *small]
    pick.shuffle(counts)
    poison = {} if page is None else poisoned(counts, published.POISONED, page)
    return Load(tuple(counts), poison)


def _brought_to(counts: list[int], total: int, least: int, most: int) -> None:
    """One page more or less for one after another, until the sum is right."""
    at = 0
    while (left := total - sum(counts)) != 0:
        step = 1 if left > 0 else -1
        if least <= counts[at % len(counts)] + step <= most:
            counts[at % len(counts)] += step
        at += 1
