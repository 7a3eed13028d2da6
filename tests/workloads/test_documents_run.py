"""`documents` as a Program, run in this process: every kind of source ends as it should."""

from __future__ import annotations

import io
from typing import Any

import pikepdf
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
    scanned_pdf,
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


def test_pages_with_and_without_text_stand_in_order() -> None:
    text, scan = pdf_bytes(["first words"]), scanned_pdf(["second words", ""])
    output = run(LocalSource("a.pdf", joined(text, scan, text)))["a.pdf"].value()
    pages = [(page["text_from"], page["text"]) for page in output[".json"]["pages"]]
    assert pages == [
        ("text_layer", "first words"),
        ("ocr", "second words"),
        ("ocr", ""),
        ("text_layer", "first words"),
    ]
    assert output[".json"]["missing"] == []
    assert "## Page 2\n\nsecond words\n\n## Page 3\n\n*(no text on this page)*" in output[".md"]


def test_a_scan_that_cannot_be_rendered_is_a_gap_and_no_empty_page() -> None:
    data = pdf_bytes(["words", ""])
    with pikepdf.open(io.BytesIO(data)) as document:
        # Outside of the media box, so that nothing of the page is left.
        document.pages[1].cropbox = pikepdf.Array([2000, 2000, 2100, 2100])
        document.save(edited := io.BytesIO())
    output = run(LocalSource("a.pdf", edited.getvalue()))["a.pdf"].value()
    assert output[".json"]["missing"] == [1]
    assert [page["text"] for page in output[".json"]["pages"]] == ["words"]
    assert "> **Page 2 is missing**" in output[".md"]


def test_a_document_with_text_waits_for_no_scan() -> None:
    rows = [LocalSource("scan.pdf", scanned_pdf(3)), LocalSource("text.pdf", pdf_bytes(3))]
    assert [parent.row.key for parent in run_local(documents, rows)] == ["text.pdf", "scan.pdf"]


def joined(*files: bytes) -> bytes:
    whole = pikepdf.new()
    for data in files:
        with pikepdf.open(io.BytesIO(data)) as document:
            whole.pages.extend(document.pages)
    whole.save(result := io.BytesIO())
    return result.getvalue()


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
            read_by = "ocr" if name.startswith("scan-") else "text_layer"
            for page in output["pages"]:
                assert page["text_from"] == read_by
                assert f"Page {page['number']} of {samples[name].pages}" in page["text"]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not at hand")
def test_a_count_that_lies_gives_gaps() -> None:
    parent = run(case("hostile/count_lies_9.pdf"))["hostile/count_lies_9.pdf"]
    assert parent.value()[".json"]["missing"] == [5, 6, 7, 8]
    assert [page["number"] for page in parent.value()[".json"]["pages"]] == [1, 2, 3, 4, 5]
