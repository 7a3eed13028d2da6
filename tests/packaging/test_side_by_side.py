"""The two pytest processes of `make test`, run on small made-up trees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import side_by_side
from tests.packaging import distributions


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A test in each half; one of those beside fails while `broken` is there."""
    for folder, body in {
        "binding": "def test_night(): pass",
        "storage": (
            "import os, pathlib\n"
            "def test_ledger(): assert not pathlib.Path('broken').exists()\n"
            "def test_nice(): assert os.nice(0) >= 10\n"
        ),
    }.items():
        (tmp_path / "tests" / folder).mkdir(parents=True)
        (tmp_path / "tests" / folder / f"test_{folder}.py").write_text(body, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n", "utf-8")
    return tmp_path


def _run(tree: Path, *arguments: str) -> tuple[int, str]:
    script = distributions.ROOT / "tests" / "side_by_side.py"
    ended = subprocess.run(
        [sys.executable, script, *arguments], cwd=tree, capture_output=True, text=True
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_each_half_runs_and_what_failed_beside_is_told_and_tried_again_alone(tree: Path) -> None:
    (tree / "broken").touch()
    status, said = _run(tree)
    assert status == 1
    assert "1 passed" in said
    assert "1 failed, 1 passed" in said
    (tree / "broken").unlink()
    status, said = _run(tree, "--last-failed")
    assert status == 0
    assert "test_night" not in said
    assert said.count(" passed") == 1


def test_a_path_is_run_alone_and_no_test_at_all_is_a_failure(tree: Path) -> None:
    status, said = _run(tree, "tests/binding/test_binding.py::test_night", "-v")
    assert (status, "beside" in said, said.count("PASSED")) == (0, False, 1)
    assert _run(tree, "-k", "nothing")[0] == 5


def test_all_that_runs_beside_is_there_and_starts_no_ray() -> None:
    asks = re.compile(r"\b(ray_cluster|run_nightly): ")
    for name in side_by_side.BESIDE:
        path = distributions.ROOT / "tests" / name
        assert path.exists()
        modules = [path] if path.is_file() else path.rglob("*.py")
        assert not [one.name for one in modules if asks.search(one.read_text("utf-8"))]
