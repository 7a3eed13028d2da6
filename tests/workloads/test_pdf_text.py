"""Opening and reading PDFs: each failure by its type, the text as printed, documents kept open."""

from __future__ import annotations

import resource
import sys

import pytest

from rayorch_prefect import RecordFailure
from rayorch_prefect.errors import SourceChanged, SourceMissing, StoreError
from rayorch_prefect.workloads.pdf_text import (
    OpenDocuments,
    address_space_limit,
    clean_text,
    fetch,
    open_pdf,
    read_page,
)
from rayorch_prefect.workloads.samples import (
    encrypted_pdf,
    not_a_pdf,
    pdf_bytes,
    pdf_of_no_pages,
    pdf_with_broken_page,
    truncated_pdf,
)
from tests.workloads.local_source import LocalSource

CORRUPT = b"%PDF-1.4\nnothing that pdfium knows\nstartxref\n7\n%%EOF\n"


def failure_type(data: bytes) -> str:
    with pytest.raises(RecordFailure) as caught:
        open_pdf(data, "s3://shelf/a.pdf").close()
    assert "s3://shelf/a.pdf" in caught.value.message
    return caught.value.type


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "Empty"),
        (pdf_of_no_pages(), "Empty"),
        (not_a_pdf(), "NotAPdf"),
        (b"\0" * 2000 + pdf_bytes(1), "NotAPdf"),
        (encrypted_pdf(), "Encrypted"),
        (truncated_pdf(), "Truncated"),
        (CORRUPT, "Unreadable"),
    ],
)
def test_each_failure_has_its_type(data: bytes, expected: str) -> None:
    assert failure_type(data) == expected


def test_no_pages_is_empty_also_after_another_file_failed() -> None:
    # pdfium keeps its last error: the file without pages must not inherit it.
    assert failure_type(encrypted_pdf()) == "Encrypted"
    assert failure_type(pdf_of_no_pages()) == "Empty"


def test_a_cut_file_that_pdfium_would_repair_is_not_taken() -> None:
    whole = pdf_bytes(2)
    updated_then_cut = whole + b"\n12 0 obj\n<< /Type /Annot"
    assert failure_type(updated_then_cut) == "Truncated"


@pytest.mark.parametrize("garbage", [b"\0" * 4096, b"\n\n", b"<!-- appended by a gateway -->"])
def test_garbage_after_the_end_or_before_the_header_is_harmless(garbage: bytes) -> None:
    document = open_pdf(garbage[:512] + pdf_bytes(3) + garbage, "a.pdf")
    assert len(document) == 3
    document.close()


def test_pages_have_their_own_text_and_size_in_points() -> None:
    document = open_pdf(pdf_bytes(["one\nand more", "two"]), "a.pdf")
    assert read_page(document, 0) == {
        "number": 1,
        "ordinal": 0,
        "width": 595.28,
        "height": 841.89,
        "text": "one\nand more",
        "text_from": "text_layer",
    }
    assert read_page(document, 1)["text"] == "two"
    document.close()


def test_a_broken_page_fails_alone() -> None:
    document = open_pdf(pdf_with_broken_page(12, broken=[1, 10]), "s3://shelf/a.pdf")
    assert len(document) == 12
    for ordinal in range(12):
        if ordinal in (1, 10):
            with pytest.raises(RecordFailure, match=rf"page {ordinal + 1} of s3://shelf/a") as bad:
                read_page(document, ordinal)
            assert bad.value.type == "UnreadablePage"
        else:
            assert read_page(document, ordinal)["text"] == f"Page {ordinal + 1}"
    document.close()


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("a\r\nb\rc", "a\nb\nc"),
        ("sub\x02mitted by \x02 us", "sub-\nmitted by  us"),
        ("self\ufffepublishing", "self-\npublishing"),
        ("tab\tstays, nul\x00 and feed\x0c go", "tab\tstays, nul and feed go"),
        ("naïve 📄 文", "naïve 📄 文"),
    ],
)
def test_clean_text(raw: str, clean: str) -> None:
    assert clean_text(raw) == clean


def test_a_gone_or_changed_source_is_typed_and_other_store_errors_pass() -> None:
    for error in (SourceMissing("is gone"), SourceChanged("has another ETag")):
        with pytest.raises(RecordFailure, match=r"s3://shelf/a\.pdf") as caught:
            fetch(LocalSource("a.pdf", b"", error=error))
        assert caught.value.type == type(error).__name__
    with pytest.raises(StoreError, match="503"):
        fetch(LocalSource("a.pdf", b"", error=StoreError("503")))


def test_open_documents_are_fetched_once_and_the_oldest_goes() -> None:
    kept = OpenDocuments(limit=2)
    first, second, third = (LocalSource(name, pdf_bytes(1)) for name in ("a", "b", "c"))
    for source in (first, second, first, third, first, second):
        assert read_page(kept.get(source), 0)["text"] == "Page 1"
    assert (first.reads, second.reads, third.reads) == (1, 2, 1)
    assert len(kept) == 2
    kept.close()
    assert len(kept) == 0


def test_another_etag_is_another_document() -> None:
    kept = OpenDocuments()
    old, new = LocalSource("a", pdf_bytes(["old"])), LocalSource("a", pdf_bytes(["new"]), etag="2")
    assert [read_page(kept.get(source), 0)["text"] for source in (old, new)] == ["old", "new"]
    kept.close()


def test_open_documents_are_bounded_in_bytes_but_one_always_stays() -> None:
    kept = OpenDocuments(limit=8, limit_bytes=10)
    for name in "abc":
        assert read_page(kept.get(LocalSource(name, pdf_bytes(1))), 0)["number"] == 1
        assert len(kept) == 1
    kept.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS acts on Linux only")
def test_the_address_space_limit_ends_with_its_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), address_space_limit(64):
        bytearray(512 * 1024 * 1024)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
