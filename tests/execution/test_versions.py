"""A worker with another version of the package than the driver's."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect import Engine, _version, program, stage
from rayorch_prefect.errors import StageStartError
from rayorch_prefect.execution.versions import mismatch, own_versions


def plain(row: int) -> int:
    return row


@program
def kept(row: Any) -> Any:
    return stage(plain)(row)


def test_another_version_on_the_nodes_is_named(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, python = re.escape(_version.VERSION), "{}.{}".format(*sys.version_info)
    # The workers import the package themselves.
    monkeypatch.setattr(_version, "VERSION", "9.0.7")
    said = (
        f"stage plain: .*VersionMismatch: the driver has rayorch-prefect 9.0.7 on Python {python} "
        f"and this worker rayorch-prefect {theirs} on Python {python}; install the same .*"
        "--working-dir"
    )
    with pytest.raises(StageStartError, match=said):
        Engine(kept).__enter__()


def test_another_python_is_a_mismatch_and_the_same_is_none() -> None:
    package, python = own_versions()
    assert mismatch((package, python), own_versions()) == ""
    assert "on Python 3.99; install" in mismatch((package, python), (package, "3.99"))


def test_the_code_has_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == _version.VERSION
