"""The workloads of `make bench`: seeded documents -> pages -> documents, the same for every system.

Page counts are log-normal (documents are long-tailed) and depend on the seed alone. Times are
seconds a stage sleeps; a workload of 0 s shows what a system itself costs.
"""

from __future__ import annotations

import bisect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MIB = 2**20
# The real documents of W7: their names below the folder that `pdfs=` gives, with page counts.
LISTED_PDFS = Path(__file__).with_name("w7_pdfs.json")


@dataclass(frozen=True)
class Document:
    """`number` is its name in outputs; `path` the file of a real one."""

    number: int
    pages: int
    path: str = ""


@dataclass(frozen=True)
class Workload:
    """What is to be done and with how many workers a stage; `kind` says what a page is: nothing
    but its number ("none"), made-up bytes ("bytes") or an image of a real page ("pdf")."""

    name: str
    documents: tuple[Document, ...]
    kind: str = "none"
    render_page_s: float = 0.0
    read_call_s: float = 0.0
    read_row_s: float = 0.0
    assemble_s: float = 0.0
    upload_s: float = 0.0
    batch: int = 64
    documents_a_call: int = 16
    render_workers: int = 4
    read_workers: int = 4
    assemble_workers: int = 4
    upload_workers: int = 0
    page_bytes: int = 0
    store_mib: int = 0
    upper_share: int = 8
    poison: tuple[tuple[int, int], ...] = ()
    """(document, page): the page is a GroupFailure, so that nothing comes of its document."""

    @property
    def pages(self) -> int:
        """Pages of all documents."""
        return sum(document.pages for document in self.documents)

    @property
    def workers(self) -> int:
        """Workers of all stages."""
        ends = self.assemble_workers + self.upload_workers
        return self.render_workers + self.read_workers + ends

    @property
    def last_stage(self) -> str:
        """The stage whose end makes a document done."""
        return "upload" if self.upload_workers else "assemble"

    def bound_s(self) -> float:
        """Seconds that the busiest stage needs if its workers never wait; 0.0 if unknown."""
        calls = -(-self.pages // self.batch)
        busy = [
            self.render_page_s * self.pages / self.render_workers,
            (self.read_call_s * calls + self.read_row_s * self.pages) / self.read_workers,
            self.assemble_s * len(self.documents) / self.assemble_workers,
        ]
        if self.upload_workers:
            busy.append(self.upload_s * len(self.documents) / self.upload_workers)
        return max(busy)


def long_tailed(
    seed: int, documents: int, pages: int, most: int, sigma: float = 1.2
) -> tuple[Document, ...]:
    """Log-normal page counts from 1 to `most`, scaled until they add up to about `pages`."""
    pick = random.Random(seed)
    drawn = [pick.lognormvariate(0.0, sigma) for _ in range(documents)]

    def counts(scale: int) -> list[int]:
        return [min(most, max(1, round(one * scale / MIB))) for one in drawn]

    fitting = bisect.bisect_left(range(2**40), pages, key=lambda scale: sum(counts(scale)))
    return tuple(Document(number, n) for number, n in enumerate(counts(fitting)))


def w1(pages: int = 80_000) -> Workload:
    """Overhead: pages that cost nothing."""
    return Workload("w1", long_tailed(1, max(1, round(pages / 47)), pages, 427))


def w2(pages: int = 3_000) -> Workload:
    """A simulated GPU between a renderer and an upload."""
    return Workload(
        "w2",
        long_tailed(2, max(1, pages // 25), pages, 200),
        render_page_s=0.005,
        read_call_s=0.030,
        read_row_s=0.004,
        assemble_s=0.010,
        upload_s=0.040,
        batch=16,
        documents_a_call=1,
        upload_workers=4,
    )


def w3(documents: int = 188, page: str = "first") -> Workload:
    """The paper's failure experiment at a tenth of its size: a twentieth of the documents holds
    half of the pages, and one `page` of each of these is poison: first, random, last or none.

    Raises ValueError for another page.
    """
    pick = random.Random(33)
    large = round(documents * 99 / 1885)
    counts = [round(427 - 240 * (i / max(1, large - 1)) ** 0.42) for i in range(large)]
    counts += [pick.randint(1, 23) for _ in range(documents - large)]
    pick.shuffle(counts)
    places: dict[str, Callable[[int], int]] = {
        "first": lambda n: 0,
        "random": pick.randrange,
        "last": lambda n: n - 1,
    }
    if page not in (*places, "none"):
        raise ValueError(f"page is {page}; expected one of {', '.join(places)}, none")
    spoilt = [number for number, n in enumerate(counts) if n > 23 and page != "none"]
    return Workload(
        "w3",
        tuple(Document(number, n) for number, n in enumerate(counts)),
        read_row_s=0.005,
        batch=48,
        documents_a_call=8,
        poison=tuple((number, places[page](counts[number])) for number in spoilt),
    )


def w4(pages: int = 10_240, read_workers: int = 64) -> Workload:
    """Strong scaling: 50 ms a page; compare 4 and 64 workers."""
    return Workload(
        "w4",
        tuple(Document(number, 32) for number in range(pages // 32)),
        read_row_s=0.050,
        batch=16,
        documents_a_call=8,
        read_workers=read_workers,
    )


def w4_fine(pages: int = 40_960) -> Workload:
    """Whether the driver keeps 64 workers busy whose batches take 94 ms."""
    coarse = w4(pages, 64)
    return replace(coarse, name="w4_fine", read_call_s=0.030, read_row_s=0.004)


def w6(pages: int = 500, documents: int = 40, page_mib: int = 8, store_mib: int = 1024) -> Workload:
    """Payloads: several times more bytes than the object store holds."""
    return Workload(
        "w6",
        long_tailed(6, documents, pages, 60),
        "bytes",
        read_row_s=0.010,
        batch=8,
        documents_a_call=1,
        assemble_workers=2,
        page_bytes=page_mib * MIB,
        store_mib=store_mib,
    )


def w6_big() -> Workload:
    """One document alone is larger than the object store."""
    return replace(w6(pages=150, documents=6, page_mib=24), name="w6_big")


def w7(pdfs: str = "", order: str = "seeded", pages: int = 250) -> Workload:
    """Real documents, rendered and read: PDFs of folder `pdfs`, at most `pages` pages in all.

    `order` is seeded, longest_first or longest_last. Raises ValueError without PDFs.
    """
    taken: list[Document] = []
    left = pages
    for number, (path, count) in enumerate(_pdfs(Path(pdfs)) if pdfs else []):
        if count <= left:
            taken.append(Document(number, count, str(path)))
            left -= count
    if not taken:
        raise ValueError("w7 wants real PDFs: --set pdfs=FOLDER with some that have few pages")
    random.Random(7).shuffle(taken)
    if order != "seeded":
        taken.sort(key=lambda document: document.pages, reverse=order == "longest_first")
    return Workload(
        "w7",
        tuple(taken),
        "pdf",
        batch=4,
        documents_a_call=1,
        render_workers=2,
        read_workers=2,
        assemble_workers=1,
        page_bytes=3 * MIB,
        store_mib=2048,
    )


def _pdfs(folder: Path) -> list[tuple[Path, int]]:
    """The listed files if the folder has them all, else every PDF in it that opens."""
    listed = [(folder / name, pages) for name, pages in json.loads(LISTED_PDFS.read_text())]
    if all(path.is_file() for path, _ in listed):
        return listed
    import pypdfium2

    found: list[tuple[Path, int]] = []
    for path in sorted(folder.rglob("*.pdf")):
        try:
            with pypdfium2.PdfDocument(path) as opened:
                found.append((path, len(opened)))
        except pypdfium2.PdfiumError:
            continue
    return found


def ablation(pages: int = 3_000, batch: int = 16) -> Workload:
    """W2 with two sizes of batches: most documents fill one of 16 pages, few one of 64."""
    return replace(w2(pages), name="ablation", batch=batch)


def w8(pages: int = 3_000, times: int = 10) -> Workload:
    """W2's documents `times` times over, their outputs published to an S3 server."""
    once = w2(pages)
    documents = tuple(
        replace(each, number=each.number + turn * len(once.documents))
        for turn in range(times)
        for each in once.documents
    )
    return replace(once, name="w8", documents=documents, upload_s=0.0, upload_workers=0)


MAKERS: dict[str, Callable[..., Workload]] = {
    "w1": w1,
    "w2": w2,
    "w3": w3,
    "w4": w4,
    "w4_fine": w4_fine,
    "w6": w6,
    "w6_big": w6_big,
    "w7": w7,
    "w8": w8,
    "ablation": ablation,
}


def made(name: str, settings: dict[str, Any]) -> Workload:
    """The workload; a setting is an argument of its maker or else a field of Workload.

    Raises ValueError for a setting that is neither.
    """
    maker = MAKERS[name]
    arguments = {key: settings[key] for key in settings if key in _arguments(maker)}
    rest = {key: value for key, value in settings.items() if key not in arguments}
    unknown = rest.keys() - Workload.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"{name} has no setting {', '.join(sorted(unknown))}")
    return replace(maker(**arguments), **rest)


def _arguments(maker: Callable[..., Workload]) -> tuple[str, ...]:
    code = maker.__code__
    return code.co_varnames[: code.co_argcount]
