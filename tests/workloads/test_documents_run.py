"""`documents` as a Program, run in this process: every kind of source ends as it should."""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect import run_local
from rayorch_prefect.model.outcomes import Kind, ParentOutcome
from rayorch_prefect.workloads.documents import documents
from rayorch_prefect.workloads.samples import (
    encrypted_pdf,
    make_samples,
    not_a_pdf,
    pdf_bytes,
    pdf_with_broken_page,
    truncated_pdf,
)
from tests.workloads.local_source import CASES, LocalSource, case


def run(*rows: LocalSource, seed: int | None = None) -> dict[str, Any]:
    """Each parent by the key of its row; every row gives exactly one."""
    parents = list(run_local(documents, list(rows), seed=seed))
    assert sorted(parent.index for parent in parents) == list(range(len(rows)))
    return {parent.row.key: parent for parent in parents}


def failure(parent: Any) -> tuple[Kind, str]:
    assert parent.outcome is ParentOutcome.FAILED
    return parent.cause.kind, parent.cause.type


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_good_and_bad_pdfs_in_one_batch(seed: int | None) -> None:
    parents = run(
        LocalSource("good.pdf", pdf_bytes(3)),
        LocalSource("locked.pdf", encrypted_pdf()),
        LocalSource("cut.pdf", truncated_pdf()),
        LocalSource("gap.pdf", pdf_with_broken_page(2, broken=[1])),
        LocalSource("text.pdf", not_a_pdf()),
        seed=seed,
    )
    good = parents["good.pdf"].value()
    assert [page["number"] for page in good[".json"]["pages"]] == [1, 2, 3]
    assert [page["text"] for page in good[".json"]["pages"]] == ["Page 1", "Page 2", "Page 3"]
    assert good[".json"]["missing"] == []

    assert failure(parents["locked.pdf"]) == (Kind.RECORD_FAILURE, "Encrypted")
    assert failure(parents["cut.pdf"]) == (Kind.RECORD_FAILURE, "Truncated")
    assert failure(parents["text.pdf"]) == (Kind.RECORD_FAILURE, "NotAPdf")
    for name in ("locked.pdf", "cut.pdf", "text.pdf"):
        assert parents[name].cause.attempts == 1, "never retried"

    gap = parents["gap.pdf"]
    assert gap.outcome is ParentOutcome.COMPLETED
    assert gap.value()[".json"]["missing"] == [1]
    assert gap.value()[".json"]["page_count"] == 2
    assert "> **Page 2 is missing**" in gap.value()[".md"]


@pytest.mark.parametrize(
    ("pages", "broken", "expected"),
    [(4, [0, 3], None), (4, [0, 1, 3], "TooManyGaps"), (2, [0, 1], "UnreadablePage")],
)
def test_half_of_the_pages_may_be_missing(
    pages: int, broken: list[int], expected: str | None
) -> None:
    parent = run(LocalSource("a.pdf", pdf_with_broken_page(pages, broken)))["a.pdf"]
    if expected is None:
        assert parent.value()[".json"]["missing"] == broken
    else:
        assert failure(parent)[1] == expected


def test_the_samples_end_as_they_say() -> None:
    samples = {sample.name: sample for sample in make_samples()}
    parents = run(*(LocalSource(name, sample.data) for name, sample in samples.items()))
    assert parents.keys() == samples.keys()
    for name, parent in parents.items():
        if samples[name].failure:
            assert failure(parent) == (Kind.RECORD_FAILURE, samples[name].failure)
        else:
            output = parent.value()[".json"]
            assert output["page_count"] == len(output["pages"]) == samples[name].pages


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not at hand")
def test_a_count_that_lies_gives_gaps() -> None:
    parent = run(case("hostile/count_lies_9.pdf"))["hostile/count_lies_9.pdf"]
    assert parent.value()[".json"]["missing"] == [5, 6, 7, 8]
    assert [page["number"] for page in parent.value()[".json"]["pages"]] == [1, 2, 3, 4, 5]
