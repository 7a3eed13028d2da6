"""Rendering under the cap, and reading what has no text layer."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayorch_prefect import Engine, program, stage
from rayorch_prefect.workloads.documents import ReadPage, ReadScan
from rayorch_prefect.workloads.page_ocr import (
    MAX_PIXELS,
    MAX_SIDE,
    Recognizer,
    is_blank,
    render_page,
    rendering_of,
)
from rayorch_prefect.workloads.pdf_text import Page, open_pdf
from rayorch_prefect.workloads.samples import pdf_bytes, scanned_pdf
from tests.services import ray_cluster, s3_server
from tests.workloads.local_source import CASES, LocalSource, case

__all__ = ["ray_cluster", "s3_server"]

TEXT = """\
Inventory of the northern warehouse
Shelf 14 holds 230 brass fittings and 17 valves.
The seventh crate was opened on Tuesday."""


@pytest.fixture(scope="module")
def read_scan() -> Iterator[ReadScan]:
    """One for the module: its models take a second to load."""
    stage = ReadScan()
    yield stage
    stage.close()


def by_text_layer(source: LocalSource, ordinal: int) -> tuple[Page, bool, bool]:
    stage = ReadPage()
    result = stage(source, ordinal)
    stage.close()
    return result


def word_recall(found: str, right: str) -> float:
    words = Counter(re.findall(r"\w+", right.lower()))
    seen = Counter(re.findall(r"\w+", found.lower()))
    return (words & seen).total() / words.total()


def of_size(width: float, height: float, drawn: bool = False) -> bytes:
    """A PDF of one page of that size in points, with or without a line across it."""
    content = f"0 0 m {width} {height} l S" if drawn else ""
    return (
        "%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n"
        "2 0 obj\n<< /Type /Pages /Kids [3 0 R] /Count 1 >>\nendobj\n3 0 obj\n"
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] /Contents 4 0 R >>\n"
        f"endobj\n4 0 obj\n<< /Length {len(content)} >>\nstream\n{content}\nendstream\nendobj\n"
        "trailer\n<< /Root 1 0 R >>\n%%EOF\n"
    ).encode()


def test_a_scan_is_read_without_any_download(
    read_scan: ReadScan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any) -> None:
        raise AssertionError("OCR opened a connection")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    source = LocalSource("a.pdf", scanned_pdf([TEXT]))
    page, has_text, has_none = by_text_layer(source, 0)
    assert (page["text"], has_text, has_none) == ("", False, True)
    assert page["text_from"] == "text_layer"

    seen = read_scan(source, page)

    assert word_recall(seen["text"], TEXT) >= 0.98
    assert seen["text"].splitlines()[0] == "Inventory of the northern warehouse"
    changed = {"text": seen["text"], "text_from": "ocr"}
    assert seen == {**page, **changed, "rendering": {"dpi": 144.0, "capped": False}}


@pytest.mark.parametrize("text", ["Page 1", "Totals for the year", "Invoice 17\n\n\nPaid in full"])
def test_a_page_of_few_words_is_not_taken_for_empty(read_scan: ReadScan, text: str) -> None:
    source = LocalSource(text, scanned_pdf([text]))
    seen = read_scan(source, by_text_layer(source, 0)[0])["text"]
    assert seen.split() == text.split()


def test_a_page_with_text_needs_no_ocr() -> None:
    page, has_text, has_none = by_text_layer(LocalSource("a.pdf", pdf_bytes([TEXT])), 0)
    assert (page["text"], has_text, has_none) == (TEXT, True, False)


def test_a_blank_page_is_empty_and_no_gap() -> None:
    source, stage = LocalSource("a.pdf", pdf_bytes(["words", ""])), ReadScan()
    page, _, has_none = by_text_layer(source, 1)
    assert has_none
    assert stage(source, page)["text"] == ""
    assert "_engine" not in vars(stage.recognize), "no model is loaded for a blank page"
    stage.close()


def test_blank_is_one_colour_all_over() -> None:
    image = np.full((4, 5, 3), (10, 20, 30), np.uint8)
    assert is_blank(image)
    image[3, 4, 2] += 1
    assert not is_blank(image)


@pytest.mark.parametrize("size", [(595, 842), (842, 595), (1190, 1684), (10, 10)])
def test_up_to_a2_at_144_dpi(size: tuple[float, float]) -> None:
    assert rendering_of(*size) == {"dpi": 144, "capped": False}


@pytest.mark.parametrize(
    "size", [(14400, 14400), (2000, 3000), (20, 14000), (1e6, 1e6), (595, 2**31)]
)
def test_above_the_cap_the_page_is_made_to_fit(size: tuple[float, float]) -> None:
    rendering = rendering_of(*size)
    width, height = (side * rendering["dpi"] / 72 for side in size)
    assert rendering["capped"]
    assert rendering["dpi"] < 144
    assert width * height <= MAX_PIXELS * 1.001
    assert max(width, height) <= MAX_SIDE * 1.001
    assert width * height >= MAX_PIXELS * 0.99 or max(width, height) >= MAX_SIDE * 0.99


@pytest.mark.parametrize("size", [(0, 100), (100, 0), (-5, 5), (float("inf"), 5)])
def test_a_page_of_no_area_has_no_rendering(size: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no area"):
        rendering_of(*size)


def test_a_rendered_page_is_as_large_as_said_and_the_cap_is_told() -> None:
    document = open_pdf(of_size(14400, 7200, drawn=True), "a.pdf")
    image, rendering = render_page(document, 0)
    document.close()
    assert rendering == {"dpi": 21.21, "capped": True}
    assert image.shape[0] * image.shape[1] == pytest.approx(MAX_PIXELS, rel=0.01)
    assert image.shape[1] == pytest.approx(2 * image.shape[0], abs=2)
    assert not is_blank(image)


RENDERS_WITHOUT_MEMORY = """
from rayorch_prefect import RecordFailure
from rayorch_prefect.workloads.page_ocr import render_page
from rayorch_prefect.workloads.pdf_text import open_pdf
from tests.workloads.test_page_ocr import of_size
document = open_pdf(of_size(1500, 1500, drawn=True), "s3://shelf/a.pdf")
try:
    render_page(document, 0, memory_mib=1)
except RecordFailure as failure:
    print(failure.type, failure.message)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS acts on Linux only")
def test_a_page_that_memory_does_not_allow_is_a_failure_of_its_own() -> None:
    # In a process of its own: here the allocator may have enough left over from other tests.
    command = [sys.executable, "-c", RENDERS_WITHOUT_MEMORY]
    root = Path(__file__).parents[2]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    page = "page 1 of s3://shelf/a.pdf has no text layer and cannot be rendered"
    assert said == f"UnrenderablePage {page}: it takes too much memory\n"


@pytest.mark.parametrize("size", [(20, 14000), (1400, 20), (4, 4)])
def test_odd_shapes_are_read_in_bounded_memory(size: tuple[float, float]) -> None:
    source, stage = LocalSource("a.pdf", of_size(*size, drawn=True)), ReadScan()
    page, _, has_none = by_text_layer(source, 0)
    assert has_none
    assert stage(source, page)["text_from"] == "ocr"
    stage.close()


def test_threads_are_those_that_the_worker_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert Recognizer().threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Recognizer().threads == 3
    assert Recognizer(threads=2).threads == 2


class Threads:
    """Tells with how many threads a recognizer in its worker would read."""

    def __call__(self, rows: list[int]) -> list[int]:
        return [Recognizer().threads for _ in rows]


threads = stage(Threads, num_cpus=2)


@program(version="1")
def tells_threads(row: Any) -> Any:
    return threads()(row)


def test_on_ray_threads_are_the_cpus_of_the_stage(
    ray_cluster: str,
) -> None:
    with Engine(tells_threads) as engine:
        assert [parent.value() for parent in engine.run([1])] == [2]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not at hand")
@pytest.mark.parametrize("ordinal", [0, 1])
def test_word_recall_against_the_same_page_with_text(read_scan: ReadScan, ordinal: int) -> None:
    scan = case("own/own_scan_012p_imageonly.pdf")
    right = by_text_layer(case("own/own_120p.pdf"), ordinal)[0]["text"]
    seen = read_scan(scan, by_text_layer(scan, ordinal)[0])["text"]
    assert len(right.split()) > 100
    assert word_recall(seen, right) >= 0.98
