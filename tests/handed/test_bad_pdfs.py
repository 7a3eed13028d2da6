"""H13: bad PDFs fail by type and alone; a page that cannot be read is a marked gap."""

from __future__ import annotations

import json

import pytest

from rayorch_prefect.workloads.samples import (
    encrypted_pdf,
    not_a_pdf,
    pdf_bytes,
    pdf_with_broken_page,
    truncated_pdf,
)
from tests.handed.conftest import RunNight
from tests.services import Bucket, on_stores

pytestmark = pytest.mark.handed("H13")

DOCUMENTS = "rayorch_prefect.workloads.documents:documents"
BAD = {"cut": "Truncated", "locked": "Encrypted", "text": "NotAPdf"}


@on_stores
@pytest.mark.parametrize(
    ("policy", "microbatch_size"), [(3, 64), pytest.param(2, 2, marks=pytest.mark.slow)]
)
async def test_bad_pdfs(
    bucket: Bucket, run_night: RunNight, policy: int, microbatch_size: int
) -> None:
    files = {
        "cut": truncated_pdf(),
        "good": pdf_bytes(["first", "second", "third"]),
        "locked": encrypted_pdf(),
        "text": not_a_pdf(),
        "two": pdf_with_broken_page(["whole page", "lost page"], broken=[1]),
    }
    for name, content in files.items():
        bucket.put(f"in/{name}.pdf", content)

    told = await run_night(DOCUMENTS, failure_policy=policy, microbatch_size=microbatch_size)

    wanted = ("COMPLETED", "PartiallyCompleted") if policy == 3 else ("FAILED", "RecordFailure")
    assert told.state == wanted
    assert "2 published, 3 failed" in told.message
    rows = {row["uri"].rsplit("/", 1)[-1].removesuffix(".pdf"): row for row in told.rows}
    for name, type in BAD.items():
        row = rows[name]
        assert (row["row_outcome"], row["type"], row["attempts"]) == ("failed", type, 1)
        assert row["output_keys"] == []
    assert {line["source key"]: line["type"] for line in told.table} == {
        f"in/{name}.pdf": type for name, type in BAD.items()
    }
    outputs = [key for key in bucket.keys("out/") if not key.startswith("out/_rayorch/")]
    names = [f"out/in/{name}.pdf.{ending}" for name in ("good", "two") for ending in ("json", "md")]
    assert outputs == names
    assert_pages(bucket, "good", ["first", "second", "third"], missing=[])
    assert_pages(bucket, "two", ["whole page"], missing=[1])
    assert (rows["good"]["missing"], rows["two"]["missing"]) == ([], ["1"])
    markdown = bucket.get("out/in/two.pdf.md").decode()
    assert "## Page 2\n\n> **Page 2 is missing**" in markdown
    assert "1 of 2 pages are missing" in markdown


def assert_pages(bucket: Bucket, name: str, texts: list[str], missing: list[int]) -> None:
    document = json.loads(bucket.get(f"out/in/{name}.pdf.json"))
    assert document["missing"] == missing
    assert document["page_count"] == len(texts) + len(missing)
    pages = [(page["ordinal"], page["text"].strip()) for page in document["pages"]]
    assert pages == list(enumerate(texts))
