"""PDFs in S3 become one Markdown and one JSON document each.

A source expands to its page numbers, pages are read in batches that mix documents, and each
document is assembled the moment its last page is in. A page without a text layer is rendered and
read by OCR; no other page waits for that. A page that cannot be read is a marked gap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from rayorch_prefect import F, GroupFailure, RecordFailure, program, stage
from rayorch_prefect.workloads.page_ocr import Recognizer, read_scan
from rayorch_prefect.workloads.pdf_text import (
    OpenDocuments,
    OpenPdf,
    Page,
    PdfSource,
    fetch,
    open_pdf,
    read_page,
)

MAX_PAGES = 20_000
MAX_MISSING = 0.5
# The pages of hostile files take all that there is.
MEMORY_LIMIT_MB = 2048
# Reading the largest image takes 1.8 GB more than the worker has once it is built.
SCAN_MEMORY_LIMIT_MB = 3072


class PagesOfOneDocument(Protocol):
    """What `Assemble` needs of the reduced pages: those read, in order, and the gaps."""

    @property
    def missing(self) -> tuple[int, ...]: ...
    def __iter__(self) -> Any: ...


class ListPages:
    """One source in, the ordinals of its pages out; the pages themselves are not touched.

    Raises RecordFailure: `Encrypted`, `NotAPdf`, `Empty`, `Truncated`, `Unreadable`,
    `TooManyPages`, `SourceMissing`, `SourceChanged`. Other store errors are tried again.
    """

    def __init__(self, max_pages: int = MAX_PAGES) -> None:
        self.max_pages = max_pages

    def __call__(self, source: PdfSource) -> list[int]:
        document = open_pdf(fetch(source), source.uri)
        count = len(document)
        document.close()
        if count > self.max_pages:
            # The count is only what the file claims; a few bytes can claim a million pages.
            message = f"{source.uri} claims {count} pages, at most {self.max_pages} are taken"
            raise RecordFailure("TooManyPages", message)
        return list(range(count))


class ReadPage:
    """A source and a page's ordinal in; out the page by its text layer, whether that has text,
    and whether it has none.

    The worker keeps its latest documents open, so each is fetched once a worker.
    Raises RecordFailure `UnreadablePage` for that page alone, and GroupFailure if the document
    itself is gone, changed or cannot be opened: no page of it can be trusted then.
    """

    def __init__(self, keep_open: int = 8, memory_mib: int = 2048) -> None:
        self.documents = OpenDocuments(limit=keep_open, memory_mib=memory_mib)
        self.memory_mib = memory_mib

    def __call__(self, source: PdfSource, ordinal: int) -> tuple[Page, bool, bool]:
        page = read_page(_opened(self.documents, source), ordinal, self.memory_mib)
        has_text = bool(page["text"].strip())
        return page, has_text, not has_text

    def close(self) -> None:
        self.documents.close()


class ReadScan:
    """A source and a page without text in, the page as OCR reads it out.

    Rendering takes a hundredth of the reading, so one worker does both, and no image moves.
    A blank page stays empty. `threads` defaults to the CPUs of the stage.
    Raises RecordFailure `UnrenderablePage` for that page alone, and GroupFailure as `ReadPage`.
    """

    def __init__(
        self, keep_open: int = 4, memory_mib: int = 2048, threads: int | None = None
    ) -> None:
        self.documents = OpenDocuments(limit=keep_open, memory_mib=memory_mib)
        self.memory_mib = memory_mib
        self.recognize = Recognizer(threads)

    def __call__(self, source: PdfSource, page: Page) -> Page:
        document = _opened(self.documents, source)
        return read_scan(document, page, self.recognize, self.memory_mib)

    def close(self) -> None:
        self.documents.close()


def _opened(documents: OpenDocuments, source: PdfSource) -> OpenPdf:
    try:
        return documents.get(source)
    except RecordFailure as failure:
        raise GroupFailure(failure.type, failure.message) from failure


class Assemble:
    """A source and its pages in, `{".md": Markdown, ".json": JSON-able dict}` out."""

    def __call__(self, source: PdfSource, pages: PagesOfOneDocument) -> dict[str, Any]:
        present = list(pages)
        missing = sorted(pages.missing)
        return {
            ".md": as_markdown(source.key, present, missing),
            ".json": {
                "source": source.uri,
                "etag": source.etag,
                "page_count": len(present) + len(missing),
                "missing": missing,
                "pages": present,
            },
        }


def as_markdown(key: str, pages: Sequence[Page], missing: Sequence[int]) -> str:
    """A heading with the file's name, then a section a page; gaps are marked, numbers hold."""
    sections = {page["ordinal"]: _section_text(page["text"]) for page in pages}
    for ordinal in missing:
        sections[ordinal] = f"> **Page {ordinal + 1} is missing**: it could not be read."
    parts = [f"# {_title(key)}"]
    if missing:
        parts.append(f"> **{len(missing)} of {len(sections)} pages are missing.**")
    for ordinal in sorted(sections):
        parts.append(f"## Page {ordinal + 1}\n\n{sections[ordinal]}")
    return "\n\n".join(parts) + "\n"


def _title(key: str) -> str:
    name = key.rstrip("/").rsplit("/", 1)[-1]
    return " ".join(name.split()) or "Untitled"


_BLOCK_START = re.compile(r"^[ \t]*(?=[#>=~`<]|-+\s*$|[-+*]{3,}\s*$)", re.MULTILINE)


def _section_text(text: str) -> str:
    """The page's lines; none of them can pass for a heading, a gap or a fence of ours."""
    lines = "\n".join(line.strip() for line in text.strip().split("\n"))
    return _BLOCK_START.sub(r"\\", lines) or "*(no text on this page)*"


# Together they fit two CPUs. A row may have to fetch its document; reading the largest image, full
# of text, takes a CPU 19 s.
list_pages = stage(
    ListPages,
    rowwise=True,
    batch_size=4,
    replicas=1,
    num_cpus=0.25,
    row_limit_s=120,
    memory_limit_mb=MEMORY_LIMIT_MB,
)
read_pages = stage(
    ReadPage,
    rowwise=True,
    batch_size=16,
    replicas=2,
    num_cpus=0.25,
    outputs=3,
    row_limit_s=60,
    memory_limit_mb=MEMORY_LIMIT_MB,
)
read_scans = stage(
    ReadScan,
    rowwise=True,
    batch_size=2,
    replicas=1,
    num_cpus=1,
    row_limit_s=30,
    memory_limit_mb=SCAN_MEMORY_LIMIT_MB,
)
assemble = stage(Assemble, rowwise=True, batch_size=8, replicas=1, num_cpus=0.25)


@program(version="2")
def documents(source: Any) -> Any:
    """Source -> page ordinals -> pages, those without text by OCR -> one published document."""
    ordinals = F.expand(list_pages()(source), domain="page")
    pages, has_text, has_none = read_pages()(F.broadcast(source, like=ordinals), ordinals)
    without_text = F.filter(pages, has_none)
    scans = read_scans()(F.broadcast(source, like=without_text), without_text)
    # The pages with text alone, so that a scan that fails is a gap and not an empty page.
    read = F.coalesce(F.filter(pages, has_text), scans)
    whole = F.reduce(read, on_failure="skip", max_missing=MAX_MISSING)
    return assemble()(source, whole)
