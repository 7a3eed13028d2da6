"""What the package imports against what it declares."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging import distributions


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _imports(node: ast.AST) -> Iterator[str]:
    """Top-level names imported when the code runs; those for type checkers alone left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and not child.level and child.module:
            yield child.module.partition(".")[0]
        elif not _is_type_checking(child):
            yield from _imports(child)


def _third_party(module: Path) -> set[str]:
    imported = set(_imports(ast.parse(module.read_text("utf-8"))))
    return imported - sys.stdlib_module_names - {"rayorch_prefect"}


def test_every_import_is_a_declared_dependency() -> None:
    project = distributions.pyproject()["project"]
    extras = project["optional-dependencies"]
    declared = {
        canonicalize_name(Requirement(text).name)
        for text in (
            *project["dependencies"],
            *extras["documents"],
            *extras["demo"],
            *extras["pictures"],
        )
    }
    owners = packages_distributions()
    undeclared = {
        f"{module.relative_to(distributions.ROOT)} imports {name}"
        for top in ("rayorch_prefect", "flows", "tasks")
        for module in (distributions.ROOT / top).rglob("*.py")
        for name in _third_party(module)
        if not {canonicalize_name(owner) for owner in owners.get(name, [name])} & declared
    }
    assert undeclared == set()
