"""Policies under the virtual clock: the same outputs, and what they save or cost."""

from __future__ import annotations

import pytest

from benchmarks.paper.corpora import failure
from rayorch_prefect.scheduler.policies import POLICIES
from rayorch_prefect.simulation.chain import Chain, Level, Stage
from rayorch_prefect.simulation.conditions import ON_RAY, Conditions
from rayorch_prefect.simulation.figures import Figures
from rayorch_prefect.simulation.load import Load, Page, lognormal
from rayorch_prefect.simulation.simulate import simulate
from tests.simulation.chains import document, mixed, on_pages

FAILURE = Chain.of(
    [
        document("render", batch=8, workers=4),
        Stage("ocr", batch=48, workers=4, row_s=0.05),
        document("assemble", batch=8, workers=4),
    ]
)


def figures(chain: Chain, load: Load, policy: str) -> Figures:
    return simulate(chain, load, conditions=Conditions(policy=policy)).figures


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_documents(policy: str) -> None:
    chain, load = mixed()
    fifo = simulate(chain, load).record
    other = simulate(chain, load, conditions=Conditions(policy=policy)).record
    assert other.completed == fifo.completed == set(range(60)) - set(load.poison)
    assert set(other.ended) == set(fifo.ended)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_poison_every_policy_computes_each_page_once(policy: str) -> None:
    chain, load = mixed()
    found = figures(chain, Load(load.counts), policy)
    rows = {stage.stage: stage.rows for stage in found.stages}
    assert rows["read"] == rows["check"] == load.pages
    assert rows["assemble"] == found.completed == 60


RANGES = Chain.of(
    [
        Stage("render", Level.RANGE, 1, 4, child_s=0.005),
        Stage("read", batch=16, workers=4, call_s=0.03, row_s=0.004),
        document("upload", workers=4, row_s=0.04),
    ]
)
SHAPES = {
    "failure": (FAILURE, failure(None).counts),
    "ranges": (RANGES, lognormal(12, 1.2, 120, 200, seed=2)),
    "even": (on_pages(batch=16, workers=8, row_s=0.05), (32,) * 160),
    "one large": (on_pages(batch=16, workers=4, call_s=0.1, row_s=0.01), (2_000, *(3,) * 200)),
    "slow calls": (on_pages(batch=64, workers=2, call_s=1.0, row_s=0.001), (40,) * 150),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_without_poison_canary_is_hardly_slower_than_fifo(shape: str) -> None:
    chain, counts = SHAPES[shape]
    load = Load(counts)
    assert figures(chain, load, "canary").wall_s <= 1.01 * figures(chain, load, "fifo").wall_s


def test_poison_on_the_first_page_is_found_before_its_siblings_go() -> None:
    whole = figures(FAILURE, failure(None), "fifo")
    found = figures(FAILURE, failure(Page.FIRST), "canary")
    assert found.suppressed_share >= 0.9
    assert found.wall_s <= 0.55 * whole.wall_s


@pytest.mark.parametrize("page", [Page.RANDOM, Page.LAST])
def test_poison_elsewhere_makes_canary_hardly_slower(page: Page) -> None:
    load = failure(page)
    fifo, canary = (figures(FAILURE, load, policy) for policy in ("fifo", "canary"))
    assert canary.wall_s <= 1.03 * fifo.wall_s


def test_what_messages_cost_hides_behind_two_batches() -> None:
    load = Load(lognormal(12, 1.2, 120, 200, seed=2))
    ideal = figures(RANGES, load, "fifo").wall_s
    assert ideal < simulate(RANGES, load, conditions=ON_RAY).figures.wall_s < 1.03 * ideal
