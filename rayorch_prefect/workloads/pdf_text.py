"""Everything that touches pdfium: opening PDFs, their text and sizes, and why they fail.

pdfium is not thread-safe: a worker calls it from one thread only.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, NotRequired, Protocol, TypedDict

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_raw

from rayorch_prefect import RecordFailure
from rayorch_prefect.errors import SourceChanged, SourceMissing

_HEADER_WITHIN = 1024
_MIB = 1024 * 1024
_PASSWORD_ERRORS = {pdfium_raw.FPDF_ERR_PASSWORD, pdfium_raw.FPDF_ERR_SECURITY}
_LINE_END_HYPHEN = re.compile(r"(?<=\w)[\x02\ufffe](?=\w)")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufffe\uffff\ud800-\udfff]")


class PdfSource(Protocol):
    """What is needed of a `Source`: a pinned object that a worker can read."""

    @property
    def uri(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def etag(self) -> str: ...
    def read(self) -> bytes: ...


class Rendering(TypedDict):
    """How a page was rendered: dots an inch, and whether the pixel cap lowered them."""

    dpi: float
    capped: bool


class Page(TypedDict):
    """One page as read: `number` counts from 1, `ordinal` from 0, sizes are in points (1/72 in).

    `rendering` is there where the text came from OCR.
    """

    number: int
    ordinal: int
    width: float
    height: float
    text: str
    text_from: Literal["text_layer", "ocr"]
    rendering: NotRequired[Rendering]


def fetch(source: PdfSource) -> bytes:
    """The source's bytes; raises RecordFailure `SourceMissing` or `SourceChanged`.

    Any other StoreError passes through: it is worth another try, these two are not.
    """
    try:
        return source.read()
    except (SourceMissing, SourceChanged) as error:
        raise RecordFailure(type(error).__name__, f"{source.uri}: {error}") from error


class OpenPdf:
    """An opened document and the bytes that pdfium reads it from; close it after use."""

    def __init__(self, raw: Any, data: bytes, name: str) -> None:
        self.name = name
        self._document = pdfium.PdfDocument(raw)
        self._data = data

    def __len__(self) -> int:
        """Pages as the file counts them; some of them may not load."""
        return len(self._document)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def page(self, ordinal: int) -> Any:
        """The loaded `pypdfium2.PdfPage`; raises PdfiumError."""
        return self._document[ordinal]

    def close(self) -> None:
        self._document.close()


def open_pdf(data: bytes, name: str, memory_mib: int = 2048) -> OpenPdf:
    """The opened document; `name` is for messages.

    Raises RecordFailure: `Empty` (no bytes or no pages), `NotAPdf`, `Encrypted` (needs a
    password), `Truncated` (the end is cut off) or `Unreadable` (corrupt otherwise).
    """
    if not data:
        raise RecordFailure("Empty", f"{name} has no bytes; upload it again")
    if b"%PDF-" not in data[:_HEADER_WITHIN]:
        raise RecordFailure("NotAPdf", f"{name} has no %PDF- header, it starts {data[:16]!r}")
    # Not PdfDocument(data): for a PDF of no pages it tells the error of some earlier file.
    with address_space_limit(memory_mib):
        raw = pdfium_raw.FPDF_LoadMemDocument64(data, len(data), None)
    if not raw:
        raise _why_not_opened(pdfium_raw.FPDF_GetLastError(), data, name)
    document = OpenPdf(raw, data, name)
    failure = _why_not_taken(document, data)
    if failure is not None:
        document.close()
        raise failure
    return document


def _why_not_opened(code: int, data: bytes, name: str) -> RecordFailure:
    if code in _PASSWORD_ERRORS:
        return RecordFailure("Encrypted", f"{name} needs a password; store it without one")
    if _is_cut(data):
        return _truncated(name)
    return RecordFailure("Unreadable", f"{name} cannot be opened: pdfium error code {code}")


def _why_not_taken(document: OpenPdf, data: bytes) -> RecordFailure | None:
    if _is_cut(data):
        # pdfium repairs what is left; pages could lose their content without any mark of it.
        return _truncated(document.name)
    if len(document) == 0:
        return RecordFailure("Empty", f"{document.name} is a PDF of no pages")
    return None


def _truncated(name: str) -> RecordFailure:
    return RecordFailure("Truncated", f"{name} is cut off before its end; upload it again")


def _is_cut(data: bytes) -> bool:
    """A whole PDF ends with a trailer or startxref: nothing but garbage follows, never an object.

    Linearised and updated PDFs hold further end marks inside, so the last one counts.
    """
    end_mark = max(data.rfind(mark) for mark in (b"startxref", b"%%EOF", b"trailer"))
    return end_mark < data.rfind(b" obj")


def read_page(document: OpenPdf, ordinal: int, memory_mib: int = 2048) -> Page:
    """Text and size of one page; raises RecordFailure `UnreadablePage`."""
    try:
        with address_space_limit(memory_mib), closing(document.page(ordinal)) as page:
            width, height = page.get_size()
            text = _text_of(page)
    except pdfium.PdfiumError as error:
        message = f"page {ordinal + 1} of {document.name} cannot be read: {error}"
        raise RecordFailure("UnreadablePage", message) from error
    return Page(
        number=ordinal + 1,
        ordinal=ordinal,
        width=round(width, 2),
        height=round(height, 2),
        text=clean_text(text),
        text_from="text_layer",
    )


def _text_of(page: Any) -> str:
    with closing(page.get_textpage()) as textpage:
        left, bottom, right, top = page.get_bbox()
        if left < right and bottom < top:
            return str(textpage.get_text_bounded(left, bottom, right, top))
        # A degenerate page box bounds nothing, although the page has text.
        return str(textpage.get_text_range())


def clean_text(text: str) -> str:
    r"""Lines end in \n, hyphens at line ends are kept as such, other control characters go.

    pdfium joins a word broken at a line end; \x02 or \ufffe stands for the hyphen and the break.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _LINE_END_HYPHEN.sub("-\n", text)
    return _CONTROLS.sub("", text)


@contextmanager
def address_space_limit(headroom_mib: int) -> Iterator[None]:
    """While inside, this process may grow by `headroom_mib` MiB; where the system allows it.

    A few bytes of nested forms can make pdfium take all memory of the machine. Under the limit
    it aborts its own process instead: the worker dies, and its page alone is charged.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    wanted = in_use + headroom_mib * _MIB
    allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([wanted, *allowed]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class OpenDocuments:
    """The documents a worker keeps open, least recently used first, keyed by URI and ETag.

    Bounded by count and by the bytes of their files; the one in use always stays.
    """

    def __init__(self, limit: int = 8, limit_bytes: int = 256 * _MIB, memory_mib: int = 2048):
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.memory_mib = memory_mib
        self._open: OrderedDict[tuple[str, str], OpenPdf] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, source: PdfSource) -> OpenPdf:
        """The opened document, fetched only if it is not open; raises as `fetch`, `open_pdf`."""
        key = (source.uri, source.etag)
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        document = open_pdf(fetch(source), source.uri, self.memory_mib)
        self._open[key] = document
        self._shrink()
        return document

    def _shrink(self) -> None:
        while len(self._open) > 1 and self._over_bounds():
            _, document = self._open.popitem(last=False)
            document.close()

    def _over_bounds(self) -> bool:
        total = sum(document.size for document in self._open.values())
        return len(self._open) > self.limit or total > self.limit_bytes

    def close(self) -> None:
        """Close all of them."""
        while self._open:
            self._open.popitem()[1].close()
