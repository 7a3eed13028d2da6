"""Chains and loads that several tests use."""

from __future__ import annotations

from rayorch_prefect.simulation.chain import Chain, Level, Stage
from rayorch_prefect.simulation.load import Load, Page, lognormal, poisoned


def on_pages(**settings: object) -> Chain:
    """One stage alone, `read`."""
    return Chain.of([Stage("read", **settings)])  # type: ignore[arg-type]


def document(name: str, **settings: object) -> Stage:
    return Stage(name, Level.DOCUMENT, **settings)  # type: ignore[arg-type]


def mixed(documents: int = 60) -> tuple[Chain, Load]:
    """Every level, rows that vary, pages that spoil their documents."""
    chain = Chain.of(
        [
            document("listed", batch=8),
            Stage("render", Level.RANGE, 1, 2, child_s=0.002, sigma=0.3),
            Stage("read", batch=16, workers=3, call_s=0.02, row_s=0.004, sigma=0.5),
            Stage("check", batch=8, workers=2, row_s=0.001, tail_share=0.02, tail_factor=20),
            document("assemble", workers=2, row_s=0.01, sigma=0.2),
        ],
        step=8,
    )
    counts = lognormal(12, 1.2, documents, 150, seed=5)
    return chain, Load(counts, poisoned(counts, 6, Page.RANDOM))
