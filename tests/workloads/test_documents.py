"""The stages of `documents` as plain objects, and what is published of a document."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayorch_prefect import GroupFailure, Members, RecordFailure
from rayorch_prefect.errors import SourceChanged, StoreError
from rayorch_prefect.workloads.documents import Assemble, ListPages, ReadPage, ReadScan
from rayorch_prefect.workloads.pdf_text import open_pdf, read_page
from rayorch_prefect.workloads.samples import encrypted_pdf, pdf_bytes, pdf_with_broken_page
from tests.workloads.local_source import LocalSource

GOLDEN_MARKDOWN = """\
# small report.pdf

> **1 of 3 pages are missing.**

## Page 1

First line
\\## Page 2
\\> **Page 3 is missing**: it could not be read.
a - b

## Page 2

> **Page 2 is missing**: it could not be read.

## Page 3

*(no text on this page)*
"""


def assembled(source: LocalSource) -> dict[str, Any]:
    """What the stages make of a source, one after the other, unreadable pages left out."""
    read, read_scan = ReadPage(), ReadScan()
    pages, ordinals, missing = [], [], []
    for ordinal in ListPages()(source):
        try:
            page, _, has_none = read(source, ordinal)
            pages.append(read_scan(source, page) if has_none else page)
            ordinals.append(ordinal)
        except RecordFailure:
            missing.append(ordinal)
    read.close()
    read_scan.close()
    return Assemble()(source, Members(pages, ordinals, tuple(missing)))


def test_golden_document_with_a_gap() -> None:
    text = "First line\n## Page 2\n> **Page 3 is missing**: it could not be read.\na - b"
    data = pdf_with_broken_page([text, "lost", ""], broken=[1])
    output = assembled(LocalSource("in/small report.pdf", data))
    assert output[".md"] == GOLDEN_MARKDOWN
    size = {"width": 595.28, "height": 841.89}
    from_ocr = {"text_from": "ocr", "rendering": {"dpi": 144.0, "capped": False}}
    assert json.loads(json.dumps(output[".json"])) == {
        "source": "s3://shelf/in/small report.pdf",
        "etag": "1",
        "page_count": 3,
        "missing": [1],
        "pages": [
            {"number": 1, "ordinal": 0, **size, "text": text, "text_from": "text_layer"},
            {"number": 3, "ordinal": 2, **size, "text": "", **from_ocr},
        ],
    }


def test_a_whole_document_names_no_gap_and_keeps_its_order() -> None:
    output = assembled(LocalSource("a.pdf", pdf_bytes(25)))
    assert [page["text"] for page in output[".json"]["pages"]] == [
        f"Page {number}" for number in range(1, 26)
    ]
    assert output[".json"]["missing"] == []
    assert "missing" not in output[".md"]
    headings = [line for line in output[".md"].splitlines() if line.startswith("## ")]
    assert headings == [f"## Page {number}" for number in range(1, 26)]


def test_a_key_cannot_break_the_heading() -> None:
    output = assembled(LocalSource("in//line\n## Page 9\nbreak.pdf", pdf_bytes(1)))
    assert output[".md"].splitlines()[0] == "# line ## Page 9 break.pdf"


def test_more_pages_than_allowed_are_refused_before_any_is_listed() -> None:
    lying = pdf_bytes(1).replace(b"/Count 1", b"/Count 900000")
    with pytest.raises(RecordFailure, match="900000 pages, at most 20000") as caught:
        ListPages()(LocalSource("a.pdf", lying))
    assert caught.value.type == "TooManyPages"


def test_a_document_is_fetched_once_for_all_its_pages() -> None:
    source, read = LocalSource("a.pdf", pdf_bytes(20)), ReadPage()
    for ordinal in range(20):
        read(source, ordinal)
    assert source.reads == 1
    read.close()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (LocalSource("a.pdf", b"", error=SourceChanged("other ETag")), "SourceChanged"),
        (LocalSource("a.pdf", encrypted_pdf()), "Encrypted"),
    ],
)
def test_a_lost_document_is_no_gap_but_spoils_all_its_pages(
    source: LocalSource, expected: str
) -> None:
    page = read_page(open_pdf(pdf_bytes([""]), "a.pdf"), 0)
    for call in (lambda: ReadPage()(source, 0), lambda: ReadScan()(source, page)):
        with pytest.raises(GroupFailure) as caught:
            call()
        assert caught.value.type == expected


def test_a_store_error_is_left_to_be_tried_again() -> None:
    for stage_call in (ListPages(), lambda source: ReadPage()(source, 0)):
        with pytest.raises(StoreError, match="503"):
            stage_call(LocalSource("a.pdf", b"", error=StoreError("503")))
