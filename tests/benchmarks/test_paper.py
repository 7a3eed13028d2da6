"""The paper's page, and what the predictions are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import predictions
from benchmarks.paper import corpora, published
from benchmarks.paper.experiments import Row
from benchmarks.paper.page import PAGE, measured, page, saved
from benchmarks.simulated import chain_of, load_of, predicted
from benchmarks.workloads import made, w2
from rayorch_prefect.simulation.conditions import IDEAL
from rayorch_prefect.simulation.load import Load, Page


def test_the_page_is_what_was_simulated_and_measured() -> None:
    assert PAGE.read_text() == page(), "run `python -m benchmarks.paper page`"


def totals(load: Load) -> tuple[int, int, int]:
    return len(load.counts), load.pages, max(load.counts)


def test_the_corpora_have_the_paper_s_totals() -> None:
    assert totals(corpora.mineru())[:2] == published.MINERU[:2]
    assert max(corpora.mineru().counts) <= published.MINERU[2]
    assert totals(corpora.videos())[:2] == published.VIDEO
    load = corpora.failure(Page.FIRST)
    assert totals(load)[:2] == (published.FAILURE_DOCUMENTS, published.FAILURE_PAGES)
    assert len(load.poison) == published.POISONED
    assert load.siblings + published.POISONED == published.POISONED_PAGES
    assert published.SUPPRESSED / load.siblings == pytest.approx(published.SUPPRESSED_SHARE, 0.01)


def test_rows_are_kept_beside_those_of_other_experiments(tmp_path: Path) -> None:
    file = tmp_path / "simulated.json"
    saved({"scaling": [Row("64 GPUs", "15.14 x", "15.9 x", "scaling")]}, file)
    saved({"failure": [Row("first page", "26.5%", "31.9%")]}, file)
    runs = {f"ours@read_workers={n}": [{"wall_s": wall}] for n, wall in ((4, 30.0), (64, 2.0))}
    (tmp_path / "w4.json").write_text(json.dumps({"runs": runs}))
    text = page(file, tmp_path)
    assert "| 64 GPUs | 15.14 x | 15.9 x | 15.00 x (93.8%) |" in text
    assert "| first page | 26.5% | 31.9% | - |" in text
    assert "Not simulated yet: `python -m benchmarks.paper ablation`." in text


def test_measured_ratios_are_of_medians_and_only_of_what_ran(tmp_path: Path) -> None:
    walls: dict[str, list[Any]] = {"ours": [2.0, 9.0, 2.0], "raydata": [4.0, 4.0, 8.0], "daft": []}
    runs = {name: [{"wall_s": wall} for wall in each] for name, each in walls.items()}
    runs["daft"] = [{"error": "killed"}]
    (tmp_path / "w2.json").write_text(json.dumps({"runs": runs}))
    found = [measured(f"comparison/{name}", tmp_path) for name in ("Ray Data", "Daft", "RayOrch")]
    assert found == ["2.00 x", "-", "1.00 x"]
    assert measured("ablation/FIFO", tmp_path) == measured("", tmp_path) == "-"


def test_what_a_failure_saves_is_told_against_the_same_policy_without_one(tmp_path: Path) -> None:
    figures = {"ours@page=random": (9.0, 0.25), "ours@page=none": (10.0, 0.0), "ours": (8.0, 0.5)}
    figures["ours:policy=canary"] = (1.0, 1.0)
    runs = {name: [{"wall_s": w, "never_read": n}] for name, (w, n) in figures.items()}
    (tmp_path / "w3.json").write_text(json.dumps({"runs": runs}))
    keys = ("first/fifo", "random/fifo", "last/fifo", "first/canary")
    assert [measured(f"failure/{key}", tmp_path) for key in keys] == [
        "50.0%, 20.0% of the wall",
        "25.0%, 10.0% of the wall",
        "-",
        "-",
    ]


def test_a_workload_s_prediction_lies_by_its_bound() -> None:
    work = w2()
    assert load_of(work).pages == work.pages
    assert [stage.name for stage in chain_of(work).stages] == [
        "listed",
        "render",
        "read",
        "assemble",
        "upload",
    ]
    assert 1.0 < predicted(work, IDEAL).wall_s / work.bound_s() < 1.05
    four = made("w4", {"pages": 2560, "read_workers": 4})
    assert predicted(four, IDEAL).wall_s == pytest.approx(four.bound_s())


def test_a_prediction_is_held_against_the_best_round() -> None:
    figures = predicted(w2())
    runs = [
        {
            "wall_s": figures.wall_s * slower,
            "tail_s": 0.1,
            "calls": {"read": 188},
            "rows": {"read": 3000},
        }
        for slower in (1.5, 1.25)
    ]
    line, ratio = predictions.compared(predictions.CASES["w2"], figures, runs)
    assert ratio == pytest.approx(0.8)
    assert "| 0.800 |" in line
    assert "| 188 / 188 | 3,000 / 3,000 |" in line
