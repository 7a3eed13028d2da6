"""Pages that never end, or take all memory, cost one page each; on real workers."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pikepdf
import pytest

from rayorch_prefect import Engine, Parent, Program, program
from rayorch_prefect.model.outcomes import ParentOutcome
from rayorch_prefect.workloads import documents as workload
from rayorch_prefect.workloads.samples import pdf_bytes, scanned_pdf
from tests.services import ray_cluster, s3_server
from tests.workloads.local_source import CASES, LocalSource, case

__all__ = ["ray_cluster", "s3_server"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGES = 6
HOSTILE = 2
MIB = 1024 * 1024
SHARED = {
    "hostile/page3_of_6_slow.pdf": "DeadlineExceeded",
    "hostile/page3_of_6_oom.pdf": "WorkerDied",
}
LINES = [f"Invoice {n} of the year {1990 + n}" for n in range(30)]


def with_hostile_page(contents: bytes, resources: Any) -> bytes:
    with pikepdf.open(io.BytesIO(pdf_bytes(PAGES))) as pdf:
        page = pdf.pages[HOSTILE]
        page.mediabox = pikepdf.Array([0, 0, 1000, 1000])
        page.Contents = pdf.make_stream(contents)
        page.Resources = resources(pdf)
        out = io.BytesIO()
        pdf.save(out)
    return out.getvalue()


def slow_pdf() -> bytes:
    """Page 3 paints a function over the whole page, again and again: minutes in one C call."""

    def resources(pdf: pikepdf.Pdf) -> pikepdf.Dictionary:
        unit = [0, 1, 0, 1]
        form = pdf.make_stream(
            b"{ 360 mul sin abs exch 360 mul cos abs 2 copy mul }",
            FunctionType=4,
            Domain=unit,
            Range=[*unit, 0, 1],
        )
        shading = pikepdf.Dictionary(
            ShadingType=1,
            ColorSpace=pikepdf.Name.DeviceRGB,
            Domain=unit,
            Matrix=[1000, 0, 0, 1000, 0, 0],
            Function=form,
        )
        return pikepdf.Dictionary(Shading=pikepdf.Dictionary(S0=shading))

    return with_hostile_page(b"/S0 sh\n" * 600, resources)


def greedy_pdf() -> bytes:
    """Page 3 is a form of ten forms, of ten forms each, and so on: more than any memory holds."""

    def resources(pdf: pikepdf.Pdf) -> pikepdf.Dictionary:
        form = pdf.make_stream(b"q Q", Type=pikepdf.Name.XObject, Subtype=pikepdf.Name.Form)
        form.BBox = pikepdf.Array([0, 0, 612, 792])
        for _ in range(9):
            outer = pdf.make_stream(
                b"/N Do " * 10, Type=pikepdf.Name.XObject, Subtype=pikepdf.Name.Form
            )
            outer.BBox = pikepdf.Array([0, 0, 612, 792])
            outer.Resources = pikepdf.Dictionary(XObject=pikepdf.Dictionary(N=form))
            form = outer
        return pikepdf.Dictionary(XObject=pikepdf.Dictionary(N=form))

    return with_hostile_page(b"/N Do", resources)


@contextmanager
def peak_of_children() -> Iterator[list[int]]:
    """The most memory, in MiB, that one process below this one has had while inside."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            peak[0] = max([peak[0], *_resident_mib(_below(os.getpid()))])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _below(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def _resident_mib(pids: set[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        try:
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
        found.append(resident * os.sysconf("SC_PAGE_SIZE") // MIB)
    return found


def with_limits(patch: pytest.MonkeyPatch, **limits: Any) -> Program:
    """`documents`, anew, with other limits where pages are read."""
    for name in ("read_pages", "read_scans"):
        patch.setattr(workload, name, getattr(workload, name).options(**limits))
    return program(workload.documents.function)


def run(made: Program, sources: Sequence[LocalSource]) -> dict[str, Parent]:
    with Engine(made) as engine:
        return {parent.row.key: parent for parent in engine.run(sources)}


def assert_one_page_is_missing(parent: Parent, type: str) -> None:
    assert parent.outcome is ParentOutcome.COMPLETED
    document = parent.value()[".json"]
    assert document["page_count"] == PAGES
    assert document["missing"] == [HOSTILE]
    there = [page["ordinal"] for page in document["pages"]]
    assert there == [ordinal for ordinal in range(PAGES) if ordinal != HOSTILE]
    assert "> **Page 3 is missing**" in parent.value()[".md"]
    (gap,) = parent.gaps
    assert (gap.path, gap.cause.kind, gap.cause.type) == ((HOSTILE,), "AttemptsExhausted", type)


def assert_nothing_is_missing(parent: Parent, pages: int) -> None:
    assert parent.outcome is ParentOutcome.COMPLETED
    document = parent.value()[".json"]
    assert (document["page_count"], document["missing"]) == (pages, [])


def neighbours() -> list[LocalSource]:
    return [LocalSource(f"good{pages}.pdf", pdf_bytes(pages)) for pages in (1, 7, 12)]


def test_made_pages_cost_one_page_each(ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_limits(monkeypatch, row_limit_s=6, memory_limit_mb=256)
    slow, greedy = LocalSource("slow.pdf", slow_pdf()), LocalSource("greedy.pdf", greedy_pdf())
    with peak_of_children() as peak:
        ended = run(made, [slow, *neighbours(), greedy])
    assert_one_page_is_missing(ended["slow.pdf"], "DeadlineExceeded")
    assert_one_page_is_missing(ended["greedy.pdf"], "WorkerDied")
    for pages in (1, 7, 12):
        assert_nothing_is_missing(ended[f"good{pages}.pdf"], pages)
    assert peak[0] < 1024


def test_scans_are_read_within_the_limits(ray_cluster: str) -> None:
    scan = LocalSource("scan.pdf", scanned_pdf(["\n".join(LINES)] * 3))
    parent = run(workload.documents, [scan])["scan.pdf"]
    assert_nothing_is_missing(parent, 3)
    pages = parent.value()[".json"]["pages"]
    assert {page["text_from"] for page in pages} == {"ocr"}
    assert all(page["text"].count("Invoice") > 20 for page in pages)


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not at hand")
def test_the_shared_pages_cost_one_page_each(ray_cluster: str) -> None:
    with peak_of_children() as peak:
        ended = run(workload.documents, [*map(case, SHARED), *neighbours()])
    for name, type in SHARED.items():
        assert_one_page_is_missing(ended[name], type)
    for pages in (1, 7, 12):
        assert_nothing_is_missing(ended[f"good{pages}.pdf"], pages)
    assert peak[0] < workload.MEMORY_LIMIT_MB + 1024
