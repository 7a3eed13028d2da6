"""What the Makefile says before it can do anything, and how CI starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.packaging import distributions


def _make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy2(distributions.ROOT / "Makefile", folder)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=env, capture_output=True, text=True)


def _python(folder: Path, verdict: str) -> Path:
    """A stand-in for an interpreter that is too old: it refuses every script it is given."""
    python = folder / "python-too-old"
    python.write_text(f"#!/bin/sh\nexit {verdict}\n", "utf-8")
    python.chmod(0o755)
    return python


def test_an_old_python_is_refused_with_what_to_do(tmp_path: Path) -> None:
    ended = _make(tmp_path, f"PYTHON={_python(tmp_path, '1')}", ".venv/bin/python")
    assert ended.returncode != 0
    assert "python-too-old is no Python 3.11 or newer" in ended.stderr
    assert "make PYTHON=" in ended.stderr
    assert not (tmp_path / ".venv").exists()


def test_without_any_python_the_candidates_are_named(tmp_path: Path) -> None:
    ended = _make(tmp_path, f"CANDIDATES={_python(tmp_path, '1')}", ".venv/bin/python")
    assert ended.returncode != 0
    assert "none of" in ended.stderr


def test_a_fitting_python_makes_the_environment(tmp_path: Path) -> None:
    ended = _make(tmp_path, ".venv/bin/python")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / ".venv" / "bin" / "pip").exists()


def test_ci_can_be_run() -> None:
    assert os.access(distributions.ROOT / ".ci" / "run", os.X_OK)
