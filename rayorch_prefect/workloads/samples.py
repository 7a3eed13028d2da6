"""Sample PDFs with known right answers, for the demo and for tests; needs `reportlab`.

Everything is made from fixed seeds: two calls give the same bytes.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium

_TOPICS = ("invoices", "pumps", "harbours", "glaciers", "contracts", "bridges", "orchards")
_OPENINGS = ("In the past year", "According to the survey", "For the second time", "By contrast")
_VERBS = ("recorded", "examined", "compared", "replaced", "delivered", "measured", "approved")
_ENDINGS = (
    "as agreed with the owner",
    "with few exceptions",
    "before the end of the quarter",
    "which the annex explains",
    "although the weather was poor",
)
PAGES_LONGEST = 120
_SCAN_PAGES = (1, 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """One file and its right answer: `pages` if it is to be published, else `failure`, its type."""

    name: str
    data: bytes
    pages: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class SampleSet:
    """The files of a demo, in the order of their names."""

    files: tuple[Sample, ...]

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def published(self) -> int:
        """How many are to be published."""
        return sum(sample.failure is None for sample in self.files)

    @property
    def pages(self) -> int:
        """Pages of all that are to be published."""
        return sum(sample.pages for sample in self.files)

    @property
    def failures(self) -> dict[str, str]:
        """Name of each file that is to fail, and its failure type."""
        return {sample.name: sample.failure for sample in self.files if sample.failure}

    def write(self, folder: Path) -> None:
        """Write the files into the folder, which is made if it is not there."""
        folder.mkdir(parents=True, exist_ok=True)
        for sample in self.files:
            (folder / sample.name).write_bytes(sample.data)


def make_samples(count: int = 42, seed: int = 7) -> SampleSet:
    """`count` files, at least 7: PDFs of 1 to 120 pages with a long tail, three bad ones, and
    two short scans, which have no text layer."""
    if count < 7:
        raise ValueError(f"count must be at least 7, not {count}")
    choose = random.Random(seed)
    files = [
        Sample("bad-cut-in-half.pdf", truncated_pdf(), failure="Truncated"),
        Sample("bad-locked.pdf", encrypted_pdf(), failure="Encrypted"),
        Sample("bad-text-file.pdf", not_a_pdf(), failure="NotAPdf"),
    ]
    reports = count - len(files) - len(_SCAN_PAGES)
    for index, pages in enumerate(_page_counts(reports, choose)):
        topic = choose.choice(_TOPICS)
        texts = [_page_text(topic, number, pages, choose) for number in range(1, pages + 1)]
        files.append(Sample(f"report-{index:03d}-{topic}.pdf", pdf_bytes(texts), pages=pages))
    for index, pages in enumerate(_SCAN_PAGES):
        topic = choose.choice(_TOPICS)
        # Few lines: a line takes OCR a tenth of a second.
        texts = [_page_text(topic, n, pages, choose, most=10) for n in range(1, pages + 1)]
        files.append(Sample(f"scan-{index:03d}-{topic}.pdf", scanned_pdf(texts), pages=pages))
    return SampleSet(tuple(sorted(files, key=lambda sample: sample.name)))


def _page_counts(count: int, choose: random.Random) -> list[int]:
    """Mostly a few pages, some dozens, and certainly one of 1 and one of 120."""
    tail = [min(PAGES_LONGEST, int(2 * choose.paretovariate(0.9))) for _ in range(count - 2)]
    counts = [1, PAGES_LONGEST, *tail]
    choose.shuffle(counts)
    return counts


def _page_text(topic: str, number: int, pages: int, choose: random.Random, most: int = 32) -> str:
    lines = [f"Report on {topic}", f"Page {number} of {pages}", ""]
    for _ in range(choose.randint(8, most)):
        lines.append(
            f"{choose.choice(_OPENINGS)} we {choose.choice(_VERBS)} {choose.randint(2, 900)} "
            f"{topic} {choose.choice(_ENDINGS)}."
        )
    return "\n".join(lines)


def pdf_bytes(pages: int | Sequence[str], **canvas_options: Any) -> bytes:
    """A PDF on A4; `pages` is a number of pages (saying `Page N`) or the text of each page.

    Lines are split at newlines, at most 48 fit. `canvas_options` go to reportlab's Canvas.
    """
    from reportlab.lib.pagesizes import A4
    from reportlab.pdfgen.canvas import Canvas

    texts = [f"Page {n}" for n in range(1, pages + 1)] if isinstance(pages, int) else pages
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, invariant=1, **canvas_options)
    for text in texts:
        lines = canvas.beginText(56, 780)
        lines.setFont("Helvetica", 11)
        lines.setLeading(15)
        lines.textLines(text, trim=0)
        canvas.drawText(lines)
        canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def scanned_pdf(pages: int | Sequence[str]) -> bytes:
    """What `pdf_bytes` gives as images of its pages, 144 dpi and grey, without a text layer."""
    from reportlab.lib.utils import ImageReader
    from reportlab.pdfgen.canvas import Canvas

    buffer = io.BytesIO()
    canvas = Canvas(buffer, invariant=1)
    with closing(pdfium.PdfDocument(pdf_bytes(pages))) as document:
        for page in document:
            size = page.get_size()
            image = page.render(scale=2, grayscale=True).to_pil()
            canvas.setPageSize(size)
            canvas.drawImage(ImageReader(image), 0, 0, *size)
            canvas.showPage()
    canvas.save()
    return buffer.getvalue()


def encrypted_pdf(pages: int | Sequence[str] = 2, password: str = "sesame") -> bytes:
    """A PDF that opens only with the user password."""
    from reportlab.lib.pdfencrypt import StandardEncryption

    return pdf_bytes(pages, encrypt=StandardEncryption(password, strength=128))


def truncated_pdf(pages: int | Sequence[str] = 6) -> bytes:
    """The first half of a PDF."""
    whole = pdf_bytes(pages)
    return whole[: len(whole) // 2]


def not_a_pdf() -> bytes:
    """A text file."""
    return b"Dear colleague,\nthis was saved under the wrong name, it is plain text.\n"


def pdf_of_no_pages() -> bytes:
    """A valid PDF whose page tree is empty."""
    return _KIDS.sub(lambda found: b"/Kids [ ]".ljust(len(found[0])), _count_of(pdf_bytes(1), 0))


def pdf_with_broken_page(pages: int | Sequence[str] = 2, broken: Sequence[int] = (1,)) -> bytes:
    """A PDF that opens and counts all `pages`, but those at the ordinals `broken` do not load."""
    data = pdf_bytes(pages)
    found = _KIDS.search(data)
    assert found is not None, "reportlab wrote no flat page tree"
    kids = list(_REFERENCE.finditer(data, *found.span(1)))
    surgery = bytearray(data)
    for ordinal in broken:
        # Object 0 never exists; the same length keeps every offset in the file right.
        kid = kids[ordinal]
        surgery[kid.start() : kid.end()] = b"0 0 R".rjust(len(kid[0]))
    return bytes(surgery)


_REFERENCE = re.compile(rb"\d+ 0 R")
_KIDS = re.compile(rb"/Kids\s*\[([\d\sR]*)\]")


def _count_of(data: bytes, count: int) -> bytes:
    return re.sub(rb"/Count 1\b", b"/Count %d" % count, data)
