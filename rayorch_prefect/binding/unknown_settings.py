"""Settings that look like ours and are none: a misspelled one would be ignored in silence."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rayorch_prefect.binding.settings import PREFIX, TABLE, RayorchSettings

_FILES = {"prefect.toml": TABLE, "pyproject.toml": ("tool", "prefect", *TABLE)}


def unknown_settings() -> list[str]:
    """One line for each such name in the environment, `.env`, `prefect.toml` and `pyproject.toml`
    of the working directory. Values are not told."""
    known = set(RayorchSettings.model_fields)
    return [_told(name, where) for name, where in _named() if name.lower() not in known]


def _told(name: str, where: str) -> str:
    near = get_close_matches(name.lower(), RayorchSettings.model_fields, 1)
    meant = f"; {near[0]} is one" if near else ""
    return f"there is no setting {name}, in {where}: it is ignored{meant}"


def _named() -> Iterator[tuple[str, str]]:
    """(name, where) of every setting of ours."""
    for where, names in (("the environment", os.environ), (".env", _of_dotenv())):
        for name in names:
            if name.upper().startswith(PREFIX):
                yield name[len(PREFIX) :], where
    for file, table in _FILES.items():
        for name in _of_toml(Path(file), table):
            yield name, f"{file} under [{'.'.join(table)}]"


def _of_dotenv() -> list[str]:
    try:
        lines = Path(".env").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line.partition("=")[0].strip().removeprefix("export ").strip() for line in lines]


def _of_toml(file: Path, table: tuple[str, ...]) -> dict[str, Any]:
    try:
        found: Any = tomllib.loads(file.read_text())
    except (OSError, ValueError):
        return {}  # not there, or told of when the settings are read
    for name in table:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
