"""What the stages do, the same code under every system.

A page is {"document", "page"} and, where the workload has bytes, {"image"}: a numpy array.
An output is {"document", "pages", "ordered", "digest"}.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.calls import CallLog, Job
from benchmarks.workloads import Document, Workload

Page = dict[str, Any]
Output = dict[str, Any]
Image = NDArray[np.uint8]
DPI = 110
MARK_BYTES = 64


class Bodies:
    """One worker of one stage; pages are nothing but their numbers."""

    def __init__(self, job: Job, stage: str) -> None:
        self.workload = job.workload
        self._poison = dict(job.workload.poison)
        self._known = {document.number: document for document in job.workload.documents}
        self._log = CallLog(job, stage)

    def render(self, number: int, first: int = 0, end: int | None = None) -> list[Page]:
        """Pages `first..end-1` of a document, all of them by default."""
        self._log.begin()
        end = self._known[number].pages if end is None else end
        if self.workload.render_page_s:
            time.sleep(self.workload.render_page_s * (end - first))
        pages = [{"document": number, "page": page} for page in range(first, end)]
        self._log.end(len(pages))
        return pages

    def rendered(self, number: int, first: int = 0, end: int | None = None) -> Iterator[Page]:
        """The same, one after another where that saves memory."""
        yield from self.render(number, first, end)

    def read(self, pages: Sequence[Page]) -> list[str]:
        """The text of each page."""
        self._log.begin()
        seconds = self.workload.read_call_s + self.workload.read_row_s * len(pages)
        if seconds:
            time.sleep(seconds)
        texts = [self.text(page) for page in pages]
        self._log.end(len(texts))
        return texts

    def is_poison(self, page: Page) -> bool:
        """Whether nothing comes of the page's document."""
        poison: int | None = self._poison.get(page["document"])
        return poison is not None and poison == int(page["page"])

    def text(self, page: Page) -> str:
        """One page's text."""
        return page_text(self.workload, int(page["document"]), int(page["page"]))

    def assemble(self, number: int, pages: Sequence[int], texts: Sequence[str]) -> Output:
        """`pages` and `texts` in the order in which the system delivered them."""
        self._log.begin()
        if self.workload.assemble_s:
            time.sleep(self.workload.assemble_s)
        output = assembled(int(number), [int(page) for page in pages], texts)
        self._log.end(1)
        return output

    def upload(self, output: Output) -> Output:
        """Hand a document over."""
        self._log.begin()
        if self.workload.upload_s:
            time.sleep(self.workload.upload_s)
        self._log.end(1)
        return output


class ByteBodies(Bodies):
    """A page is an array with a mark at both ends, which reading it checks."""

    def render(self, number: int, first: int = 0, end: int | None = None) -> list[Page]:
        """All at once; see `rendered`."""
        return list(self.rendered(number, first, end))

    def rendered(self, number: int, first: int = 0, end: int | None = None) -> Iterator[Page]:
        """One page after another, each a call in the log."""
        end = self._known[number].pages if end is None else end
        for page in range(first, end):
            self._log.begin()
            image = self.image(self._known[number], page)
            self._log.end(1)
            yield {"document": number, "page": page, "image": image}

    def image(self, document: Document, page: int) -> Image:
        """One page's bytes."""
        image = np.empty(self.workload.page_bytes, np.uint8)
        image[:MARK_BYTES] = image[-MARK_BYTES:] = _mark(document.number, page)
        return image

    def text(self, page: Page) -> str:
        """Raises ValueError for a page whose bytes are not its own."""
        image = np.asarray(page["image"])
        mark = _mark(int(page["document"]), int(page["page"]))
        whole = image.nbytes == self.workload.page_bytes
        if not whole or (image[:MARK_BYTES] != mark).any() or (image[-MARK_BYTES:] != mark).any():
            raise ValueError(f"page {page['document']}/{page['page']} is damaged")
        return super().text(page)


class PdfBodies(ByteBodies):
    """Real pages: pdfium renders them, rapidocr reads their upper part, on one thread each."""

    def __init__(self, job: Job, stage: str) -> None:
        self._opened: tuple[int, Any] | None = None
        self._engine = _ocr_engine() if stage == "read" else None
        super().__init__(job, stage)

    def image(self, document: Document, page: int) -> Image:
        """One page as pixels; its document stays open."""
        import pypdfium2

        if self._opened is None or self._opened[0] != document.number:
            with open(document.path, "rb") as file:
                self._opened = document.number, pypdfium2.PdfDocument(file.read())
        pixels: Image = self._opened[1][page].render(scale=DPI / 72).to_numpy()[:, :, :3]
        return np.ascontiguousarray(pixels[: pixels.shape[0] // self.workload.upper_share])

    def text(self, page: Page) -> str:
        """What the model reads."""
        assert self._engine is not None
        return "\n".join(self._engine(np.asarray(page["image"])).txts or ())


BODIES = {"none": Bodies, "bytes": ByteBodies, "pdf": PdfBodies}


def bodies(job: Job, stage: str) -> Bodies:
    """What a worker of `stage` does, built in that worker."""
    return BODIES[job.workload.kind](job, stage)


def assembled(number: int, pages: Sequence[int], texts: Sequence[str]) -> Output:
    """A document's output."""
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    ordered = list(pages) == list(range(len(texts)))
    return {"document": number, "pages": len(texts), "ordered": ordered, "digest": digest}


def expected_digests(workload: Workload) -> dict[int, str] | None:
    """Each document's digest as computed here; None where only a model knows it."""
    if workload.kind == "pdf":
        return None
    return {
        document.number: assembled(
            document.number,
            range(document.pages),
            [page_text(workload, document.number, page) for page in range(document.pages)],
        )["digest"]
        for document in workload.documents
    }


def page_text(workload: Workload, number: int, page: int) -> str:
    """Short, or about 2 kB where pages have bytes."""
    name = f"{number}/{page}"
    return name if workload.kind == "none" else f"{name} {_mark(number, page).tobytes().hex() * 16}"


def _mark(number: int, page: int) -> Image:
    return np.frombuffer(hashlib.sha512(f"page {number}/{page}".encode()).digest(), np.uint8)


def _ocr_engine() -> Any:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    return RapidOCR(
        params={
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            "Global.log_level": "error",
            "Det.limit_type": "max",
            "Det.limit_side_len": 736,
        }
    )
