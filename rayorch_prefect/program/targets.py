"""How a stage's class or function reaches a worker.

`@stage` puts a Stage object where the class stood in its module, so a pickle by reference of the
bare class finds another object there. StageTarget travels as module and name, and takes the class
out of the Stage object on the other side. What cannot be imported travels by value.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import PurePath
from typing import Any, TypeAlias

from rayorch_prefect.errors import StageError

Target: TypeAlias = Callable[..., Any]


class TargetHolder:
    """Base of the declarations that stand in a module in place of their class or function."""

    target: Target


class StageTarget:
    """A picklable reference to a stage's class or function.

    Importable ones travel as `module` and `name`; local ones and those of `__main__` by value,
    which takes cloudpickle.
    """

    __slots__ = ("_value", "module", "name")

    def __init__(self, value: Target | None, module: str = "", name: str = "") -> None:
        self._value = value
        self.module = module
        self.name = name

    @classmethod
    def of(cls, value: Target) -> StageTarget:
        """The reference to `value`, by name where another process can import it."""
        if is_importable(value):
            return cls(value, value.__module__, value.__qualname__)
        return cls(value)

    def resolve(self) -> Target:
        """The class or function; imports its module where it is not known yet.

        Raises StageError if the module or the name is not there.
        """
        if self._value is None:
            self._value = _imported(self.module, self.name)
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name:
            return StageTarget, (None, self.module, self.name)
        return StageTarget, (self._value,)

    def __repr__(self) -> str:
        return f"StageTarget({f'{self.module}:{self.name}' if self.name else repr(self._value)})"


def is_importable(value: object) -> bool:
    """Whether another process that has the same code finds `value` by its module and name."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return False
    # A module that was loaded from a file under a made-up name is in sys.modules alone.
    top = module.partition(".")[0]
    if top not in sys.builtin_module_names and PathFinder.find_spec(top) is None:
        return False
    return _found(sys.modules.get(module), name) is value


def module_identity(module: str) -> str:
    """The module's name as an importer would know it, so that a script run as `__main__`, or
    loaded by its path, has the same identity as when it is imported."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if module == "__main__" and spec is not None:
        name = str(spec.name)
        return name.removesuffix(".__main__")
    if module == "__main__" or module.startswith("__prefect_loader"):
        file = getattr(loaded, "__file__", None)
        return PurePath(file).stem if isinstance(file, str) else module
    return module


def identity(value: object) -> str:
    """`package.module:Name` of a class or function."""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    module = getattr(value, "__module__", None) or "builtins"
    return f"{module_identity(str(module))}:{name}"


def _found(module: object, name: str) -> object:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if isinstance(found, TargetHolder):
            found = found.target
    return found


def _imported(module: str, name: str) -> Target:
    try:
        found = _found(importlib.import_module(module), name)
    except ImportError as error:
        raise StageError(
            f"stage {name}: this worker cannot import its module {module!r} ({error}). "
            "Install it there, or put it on the workers' PYTHONPATH or in Ray's runtime_env."
        ) from error
    if not callable(found):
        raise StageError(
            f"stage {name}: module {module!r} on this worker has no such class or function. "
            "Is another version of it installed there?"
        )
    return found
