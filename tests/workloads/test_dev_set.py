"""The right answers of the shared PDFs, hostile ones included, where they are at hand."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect import RecordFailure, run_local
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.workloads.documents import ListPages, ReadPage, documents
from tests.workloads.local_source import CASES, case, right_answers

pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not at hand")

FAILURES = {
    "hostile/truncated_40pct.pdf": "Truncated",
    "hostile/encrypted_user_pw_aes256.pdf": "Encrypted",
    "hostile/zero_pages.pdf": "Empty",
    "hostile/empty_file.pdf": "Empty",
    "hostile/not_a_pdf_html.pdf": "NotAPdf",
    # Its only page does not load either: without an end it counts as cut.
    "files/pikepdf+pikepdf/tests/resources/fuzz/378014596.pdf": "Truncated",
}
LETHAL = "hostile/page3_of_6_oom.pdf"
NEVER_HERE = {LETHAL, "hostile/page3_of_6_slow.pdf"}
LONG_SCAN = "own/own_scan_012p_imageonly.pdf"
CAPPED = {
    "hostile/page_200in_square.pdf": 15,
    "hostile/page_1e6pt_square.pdf": 0.216,
    "files/mozilla+pdf.js/test/pdfs/poppler-85140-0.pdf": 0.0002747,
}
GONE = {"hostile/count_lies_9.pdf": [5, 6, 7, 8]}

# The reader is a fork of a small process: Linux counts what a process had before its exec, here
# all that other tests made this one grow by, to its peak.
READS_THE_LETHAL_PAGE = f"""
import os, resource
reader = os.fork()
if reader:
    _, status, used = os.wait4(reader, 0)
    print(os.waitstatus_to_exitcode(status), used.ru_maxrss, flush=True)
    os._exit(0)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from rayorch_prefect.workloads.documents import ReadPage
from tests.workloads.local_source import case
source, read = case({LETHAL!r}), ReadPage(memory_mib=256)
print([read(source, ordinal)[0]["number"] for ordinal in (0, 1, 3, 4, 5)], flush=True)
read(source, 2)
print("survived", flush=True)
"""


def missing_pages(row: dict[str, str]) -> list[int]:
    """Ordinals that do not load; rows that fail only when rendered have all their text."""
    if row["file"] in GONE:
        return GONE[row["file"]]
    failed = re.search(r'Failed to load page\.""?: (\d+)', row["detail"])
    pages = int(row["pages"])
    return list(range(pages - int(failed[1]), pages)) if failed else []


def param(row: dict[str, str]) -> Any:
    name = row["file"].rsplit("/")[-1]
    return pytest.param(row, id=name, marks=pytest.mark.slow if row["file"] == LONG_SCAN else ())


ROWS = [row for row in right_answers() if row["file"] not in NEVER_HERE]


@pytest.fixture(scope="module")
def ended() -> dict[str, Any]:
    """The parent of each file, of one run of all but the long scan."""
    names = [row["file"] for row in ROWS if row["file"] != LONG_SCAN]
    return {parent.row.key: parent for parent in run_local(documents, map(case, names))}


@pytest.mark.parametrize("row", [param(row) for row in ROWS])
def test_each_file_ends_with_the_right_answer(row: dict[str, str], ended: dict[str, Any]) -> None:
    name = row["file"]
    parent = ended.get(name) or next(run_local(documents, [case(name)]))
    if name in FAILURES:
        assert parent.cause is not None
        assert (parent.cause.kind, parent.cause.type) == (Kind.RECORD_FAILURE, FAILURES[name])
        return
    document, missing = parent.value()[".json"], missing_pages(row)
    assert document["page_count"] == int(row["pages"])
    assert document["missing"] == missing
    there = [page["ordinal"] for page in document["pages"]]
    assert there == [ordinal for ordinal in range(int(row["pages"])) if ordinal not in missing]
    assert (row["expect"] == "ok") <= (missing == [])
    if name == LONG_SCAN:
        assert all(len(page["text"].split()) > 50 for page in document["pages"])


@pytest.mark.parametrize("name", CAPPED)
def test_the_cap_is_told(name: str, ended: dict[str, Any]) -> None:
    (page,) = ended[name].value()[".json"]["pages"]
    assert page["rendering"]["capped"]
    assert page["rendering"]["dpi"] == pytest.approx(CAPPED[name], rel=0.01)


def test_a_page_without_area_still_has_its_text() -> None:
    source, read = case("files/mozilla+pdf.js/test/pdfs/boundingBox_invalid.pdf"), ReadPage()
    page, has_text, _ = read(source, 2)
    assert has_text
    assert (page["width"], page["height"]) == (0, 0)
    assert len(page["text"]) == 41
    read.close()


@pytest.mark.parametrize(("name", "expected"), FAILURES.items())
def test_failures(name: str, expected: str) -> None:
    with pytest.raises(RecordFailure) as caught:
        ListPages()(case(name))
    assert caught.value.type == expected


def test_every_open_error_is_judged() -> None:
    refused = {row["file"] for row in right_answers() if row["expect"] == "open_error"}
    assert refused <= set(FAILURES)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS acts on Linux only")
def test_a_page_that_takes_all_memory_ends_its_worker_not_the_machine() -> None:
    command = [sys.executable, "-c", READS_THE_LETHAL_PAGE]
    root = Path(__file__).parents[2]
    pages, end = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    ).stdout.splitlines()
    status, most_kib = map(int, end.split())
    assert pages == "[1, 2, 4, 5, 6]"
    assert status == -signal.SIGABRT
    assert most_kib < 1024 * 1024, "the limit of 256 MiB held"
