"""The lock files: complete, hashed, free of hosts and paths, and in step with pyproject.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import versions
from tests.packaging import distributions

_LOCKS = ("bench", "demo", "dev", "lowest")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Pin:
    """One locked release."""

    version: str
    marker: str
    hashes: frozenset[str]


def _lines(lock: str) -> list[str]:
    """The lock's entries, each with its continuation lines joined, without comments."""
    path: Path = distributions.ROOT / "requirements" / f"{lock}.txt"
    joined = path.read_text("utf-8").replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]


def _pins(lock: str) -> dict[str, Pin]:
    pins: dict[str, Pin] = {}
    for line in _lines(lock):
        requirement = Requirement(line.split("--hash", 1)[0].strip())
        (pinned,) = requirement.specifier
        assert pinned.operator == "==", line
        hashes = frozenset(_HASH.findall(line))
        pin = Pin(pinned.version, str(requirement.marker or ""), hashes)
        assert pins.setdefault(canonicalize_name(requirement.name), pin) is pin, line
    return pins


def _asked(extra: str) -> list[Requirement]:
    """The project's dependencies and those of `extra`, extras of its own resolved."""
    project = distributions.pyproject()["project"]
    extras = {"lowest": [], **project["optional-dependencies"]}
    texts: list[str] = [*project["dependencies"], *extras[extra]]
    asked: list[Requirement] = []
    for requirement in map(Requirement, texts):
        if canonicalize_name(requirement.name) == project["name"]:
            asked += [each for inner in requirement.extras for each in _asked(inner)]
        else:
            asked.append(requirement)
    return asked


@pytest.mark.parametrize("lock", _LOCKS)
def test_every_entry_is_pinned_with_hashes_only(lock: str) -> None:
    assert all(pin.hashes for pin in _pins(lock).values())
    left = "".join(_HASH.sub("", line) for line in _lines(lock))
    assert not re.search(r"://|--|@|\s/", left)


@pytest.mark.parametrize("lock", _LOCKS)
def test_pins_are_what_pyproject_asks(lock: str) -> None:
    pins = _pins(lock)
    build = map(Requirement, distributions.pyproject()["build-system"]["requires"])
    for requirement in (*_asked(lock), *build):
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin.version), requirement


def test_lowest_has_the_lower_bounds_themselves() -> None:
    """Of what `make versions` is about; some others are raised by what these need."""
    pins = _pins("lowest")
    bounds = {one.name: one.specifier for one in _asked("lowest") if one.name in versions.NAMES}
    assert len(bounds) == len(versions.NAMES)
    for name, bound in bounds.items():
        (least,) = bound
        assert Version(least.version) == Version(pins[name].version), name


def test_the_few_tests_of_make_versions_are_there() -> None:
    for name in versions.FEW:
        path, _, test = name.partition("::")
        assert (versions.ROOT / path).exists()
        assert not test or f"def {test.partition('[')[0]}(" in (versions.ROOT / path).read_text()


def test_demo_is_a_subset_of_dev() -> None:
    demo, dev = _pins("demo"), _pins("dev")
    assert demo.items() <= dev.items()


def test_demo_needs_no_tool_of_development() -> None:
    assert not {"pytest", "mypy", "pyright", "ruff", "uv"} & _pins("demo").keys()


@pytest.mark.parametrize("lock", _LOCKS)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_what_the_package_imports_is_locked_for_each_python(lock: str, python: str) -> None:
    here = {"python_version": python, "python_full_version": f"{python}.9"}
    linux = {"sys_platform": "linux", "platform_system": "Linux"}
    pins = _pins(lock)
    for requirement in _asked(lock):
        marker = pins[canonicalize_name(requirement.name)].marker
        assert not marker or Marker(marker).evaluate({**here, **linux}), requirement
