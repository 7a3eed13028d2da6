"""The explicit package list in pyproject.toml against what lies in the tree."""

from __future__ import annotations

from setuptools import find_packages

from tests.packaging import distributions


def test_list_is_what_find_packages_sees() -> None:
    listed = distributions.pyproject()["tool"]["setuptools"]["packages"]
    found = find_packages(str(distributions.ROOT), include=("rayorch_prefect", "rayorch_prefect.*"))
    assert sorted(listed) == sorted(found)


def test_no_folder_of_modules_lacks_its_init() -> None:
    """find_packages passes over such a folder, and then so would the wheel."""
    package = distributions.ROOT / "rayorch_prefect"
    folders = {
        module.parent
        for top in (package, package / "flows", package / "tasks")
        for module in top.rglob("*.py")
    }
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []


def test_links_point_at_the_mapped_folders() -> None:
    mapped = distributions.pyproject()["tool"]["setuptools"]["package-dir"]
    for name in ("flows", "tasks"):
        link = distributions.ROOT / "rayorch_prefect" / name
        assert link.is_symlink()
        assert link.resolve() == distributions.ROOT / mapped[f"rayorch_prefect.{name}"]
