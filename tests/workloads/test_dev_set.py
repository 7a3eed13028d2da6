"""The right answers of the shared PDFs, hostile ones included, where they are at hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayorch_prefect import RecordFailure
from rayorch_prefect.workloads.documents import ListPages, ReadPage
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
GONE = {"hostile/count_lies_9.pdf": [5, 6, 7, 8]}

READS_THE_LETHAL_PAGE = f"""
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from rayorch_prefect.workloads.documents import ReadPage
from tests.workloads.local_source import case
source, read = case({LETHAL!r}), ReadPage(memory_mib=256)
print([read(source, ordinal)["number"] for ordinal in (0, 1, 3, 4, 5)], flush=True)
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


def text_rows() -> list[dict[str, str]]:
    skipped = {*FAILURES, LETHAL}
    return [row for row in right_answers() if row["file"] not in skipped]


@pytest.mark.parametrize("row", text_rows(), ids=lambda row: row["file"].rsplit("/")[-1])
def test_pages_and_gaps(row: dict[str, str]) -> None:
    source, read = case(row["file"]), ReadPage()
    ordinals = ListPages()(source)
    assert len(ordinals) == int(row["pages"])
    missing = missing_pages(row)
    for ordinal in ordinals:
        if ordinal in missing:
            with pytest.raises(RecordFailure, match="UnreadablePage"):
                read(source, ordinal)
        else:
            assert read(source, ordinal)["ordinal"] == ordinal
    read.close()
    assert (row["expect"] == "ok") <= (missing == [])


def test_a_page_without_area_still_has_its_text() -> None:
    source, read = case("files/mozilla+pdf.js/test/pdfs/boundingBox_invalid.pdf"), ReadPage()
    page = read(source, 2)
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
    child = subprocess.Popen(
        [sys.executable, "-c", READS_THE_LETHAL_PAGE],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    said = child.stdout.read().decode()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    assert said == "[1, 2, 4, 5, 6]\n"
    assert child.returncode == -signal.SIGABRT
    assert used.ru_maxrss < 1024 * 1024, "KiB: the limit of 256 MiB held"
