"""A Program by its name, `module:attribute`."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from rayorch_prefect.errors import UsageError
from rayorch_prefect.program import Program


def load_program(name: str, folder: str | None = None) -> Program:
    """Import the Program that `module:attribute` names; `module` alone must hold just one.

    Modules in the working directory and in `folder` are found too. Raises UsageError: the module
    does not import, has no such attribute, or the attribute is not a Program.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or (":" in name and not attribute):
        raise UsageError(
            f"program {name!r}: expected module:attribute, like my_jobs.pdfs:documents"
        )
    module = imported(f"program {name!r}", module_name, folder)
    return _attribute(name, module, attribute) if attribute else _only_one(name, module)


def imported(asked: str, module_name: str, folder: str | None) -> Any:
    """The module; raises UsageError, beginning with what was `asked`, if it does not import."""
    for here in (os.getcwd(), *([os.path.abspath(folder)] if folder else [])):
        if here not in sys.path:
            sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{asked}: module {module_name} does not import ({said}); "
            "is it installed, or in the working directory?"
        ) from error


def _attribute(name: str, module: Any, attribute: str) -> Program:
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(
                f"program {name!r}: {module.__name__} has no attribute {attribute}; "
                f"Programs there: {_listed(module)}"
            )
        found = getattr(found, part)
    if not isinstance(found, Program):
        raise UsageError(
            f"program {name!r}: {attribute} is a {type(found).__name__}, not a Program made "
            f"with @program; Programs there: {_listed(module)}"
        )
    return found


def _only_one(name: str, module: Any) -> Program:
    programs = _programs(module)
    if len(programs) != 1:
        said = "several" if programs else "no"
        raise UsageError(
            f"program {name!r}: {module.__name__} has {said} Programs ({_listed(module)}); "
            f"name one as {module.__name__}:attribute"
        )
    return next(iter(programs.values()))


def _programs(module: Any) -> dict[str, Program]:
    return {key: value for key, value in vars(module).items() if isinstance(value, Program)}


def _listed(module: Any) -> str:
    return ", ".join(sorted(_programs(module))) or "none"
