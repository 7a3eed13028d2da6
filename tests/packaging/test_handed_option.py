"""`pytest --handed`, run on small made-up cases."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging import distributions

_CASES = """
import pytest

@pytest.mark.handed("H10")
def test_good(): pass

@pytest.mark.handed("H2")
@pytest.mark.parametrize("n", [0, 1])
def test_half_good(n): assert n

@pytest.mark.handed("H3")
def test_skipped(): pytest.skip("not today")

@pytest.fixture
def broken(): yield; raise RuntimeError("teardown")

@pytest.mark.handed("H4")
def test_bad_teardown(broken): pass

def test_unmarked(): assert False
"""


def _run(folder: Path, cases: str, *options: str) -> tuple[int, list[str]]:
    shutil.copy2(distributions.ROOT / "tests" / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = handed(id): a case\n", "utf-8")
    (folder / "test_cases.py").write_text(cases, "utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return ended.returncode, (ended.stdout + ended.stderr).splitlines()


def test_prints_one_line_an_id_in_order_of_number(tmp_path: Path) -> None:
    status, lines = _run(tmp_path, _CASES, "--handed")
    assert [line for line in lines if line.startswith("H")] == [
        "H2 failed",
        "H3 failed",
        "H4 failed",
        "H10 passed",
    ]
    assert status == 1


def test_a_skipped_case_alone_fails_the_run(tmp_path: Path) -> None:
    status, lines = _run(tmp_path, _CASES, "--handed", "-k", "good and not half or skipped")
    assert {"H3 failed", "H10 passed"} <= set(lines)
    assert status == 1


def test_all_passed_is_status_zero_and_unmarked_tests_stay_out(tmp_path: Path) -> None:
    status, lines = _run(tmp_path, _CASES, "--handed", "-k", "good and not half or unmarked")
    assert "H10 passed" in lines
    assert status == 0


def test_no_case_at_all_is_no_success(tmp_path: Path) -> None:
    status, _ = _run(tmp_path, "def test_unmarked(): pass", "--handed")
    assert status == 5


def test_without_the_option_every_test_runs(tmp_path: Path) -> None:
    status, lines = _run(tmp_path, "def test_unmarked(): pass")
    assert status == 0
    assert any("1 passed" in line for line in lines)


def test_a_mark_without_an_id_is_refused(tmp_path: Path) -> None:
    unnamed = "import pytest\n@pytest.mark.handed()\ndef test_it(): pass"
    status, lines = _run(tmp_path, unnamed, "--handed")
    assert status == 4
    assert any('write the mark as handed("H6")' in line for line in lines)
