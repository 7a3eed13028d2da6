"""The built wheel, looked at as a stranger's environment sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.packaging import distributions

# Prefect is there already where its entry point is loaded.
_HEAVY = ("ray", "prefect_ray", "boto3", "botocore", "pyarrow", "numpy", "pypdfium2")

_ENTRY_POINT = f"""
import json, sys
from importlib.metadata import entry_points
(found,) = [point for point in entry_points(group="prefect.collections")
            if point.name == "rayorch_prefect"]
module = found.load()
print(json.dumps([module.__file__, sorted(set({_HEAVY!r}) & set(sys.modules))]))
"""

_IMPORTS = """
import importlib.util, json
import rayorch_prefect.flows, rayorch_prefect.tasks
files = [rayorch_prefect.__file__, rayorch_prefect.flows.__file__, rayorch_prefect.tasks.__file__]
strays = [name for name in ("flows", "tasks") if importlib.util.find_spec(name)]
print(json.dumps([files, strays]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One copy of the checkout for all tests here, never built in."""
    return distributions.copy_sources(tmp_path_factory.mktemp("tree") / "tree")


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = distributions.copy_sources(tmp_path_factory.mktemp("wheel") / "source", tree)
    return distributions.build(source, "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    distributions.install(wheel, folder)
    return folder


def test_installs_the_package_and_nothing_else(environment: Path) -> None:
    version = distributions.pyproject()["project"]["version"]
    installed = {path.name for path in distributions.installed_at(environment).iterdir()}
    assert installed == {
        "rayorch_prefect",
        f"rayorch_prefect-{version}.dist-info",
        "dependencies.pth",
    }


def test_flows_and_tasks_are_imported_from_the_package(environment: Path, tmp_path: Path) -> None:
    said = distributions.run(environment / "bin" / "python", "-c", _IMPORTS, cwd=tmp_path)
    files, strays = json.loads(said)
    site = distributions.installed_at(environment)
    assert [Path(file).relative_to(site).as_posix() for file in files] == [
        "rayorch_prefect/__init__.py",
        "rayorch_prefect/flows/__init__.py",
        "rayorch_prefect/tasks/__init__.py",
    ]
    assert strays == []


def test_entry_point_of_prefect_loads_nothing_heavy(environment: Path, tmp_path: Path) -> None:
    said = distributions.run(environment / "bin" / "python", "-c", _ENTRY_POINT, cwd=tmp_path)
    file, heavy = json.loads(said)
    assert Path(file).is_relative_to(environment)
    assert heavy == []


def test_console_script_runs(environment: Path, tmp_path: Path) -> None:
    said = distributions.run(environment / "bin" / "rayorch-prefect", "--help", cwd=tmp_path)
    assert "rayorch-prefect" in said


def test_holds_every_module_and_the_typing_marker(tree: Path, wheel: Path) -> None:
    package = tree / "rayorch_prefect"
    folders = [package, package / "flows", package / "tasks"]  # rglob follows no links
    modules = {
        module.relative_to(tree).as_posix() for folder in folders for module in folder.rglob("*.py")
    }
    packed = {name for name in distributions.contents(wheel) if name.startswith("rayorch_prefect/")}
    assert packed == modules | {"rayorch_prefect/py.typed"}


def test_holds_the_licence(wheel: Path) -> None:
    licence = (distributions.ROOT / "LICENSE").read_bytes()
    assert licence in distributions.contents(wheel).values()


def test_sdist_builds_the_same_wheel(tree: Path, wheel: Path, tmp_path: Path) -> None:
    source = distributions.copy_sources(tmp_path / "source", tree)
    unpacked = distributions.unpack(distributions.build(source, "sdist"), tmp_path / "unpacked")
    again = distributions.build(unpacked, "wheel")
    assert distributions.contents(again) == distributions.contents(wheel)


def test_checkout_without_links_builds_the_same_wheel(
    tree: Path, wheel: Path, tmp_path: Path
) -> None:
    """Archives and git on systems without links leave a text file where a link was."""
    source = distributions.copy_sources(tmp_path / "source", tree)
    for name in ("flows", "tasks"):
        link = source / "rayorch_prefect" / name
        text = str(link.readlink())
        link.unlink()
        link.write_text(text, "utf-8")
    again = distributions.build(source, "wheel")
    assert distributions.contents(again) == distributions.contents(wheel)
