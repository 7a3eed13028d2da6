"""A Prefect task of the user's own that uploads, by its name or as it is."""

from __future__ import annotations

import inspect
import sys
from typing import Any, TypeAlias, cast

from prefect import Task

from rayorch_prefect.binding.loading import imported
from rayorch_prefect.binding.whole_parents import WholeParent
from rayorch_prefect.errors import UsageError

UploadTask: TypeAlias = Task[[WholeParent], Any]


def loaded_task(task: str | UploadTask | None, folder: str | None = None) -> UploadTask | None:
    """The task itself, imported (from `folder` too) if it is given by name; None for ours.

    Raises UsageError: the module does not import, the attribute is not there or no task, or the
    task does not take one argument.
    """
    if task is None:
        return None
    found = _task_of_name(task, folder) if isinstance(task, str) else task
    if not isinstance(cast(Any, found), Task):
        raise UsageError(
            f"upload task {task!r} is a {type(found).__name__}; expected a function under "
            "Prefect's @task"
        )
    _check_signature(found)
    return found


def name_of(task: str | UploadTask | None) -> str | None:
    """The name that `loaded_task` finds it by, empty if there is none; None for our own."""
    if task is None or isinstance(task, str):
        return task
    function: Any = getattr(task, "fn", None)
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is task and module != "__main__" else ""


def _task_of_name(name: str, folder: str | None) -> UploadTask:
    asked = f"upload task {name!r}"
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{asked}: expected module:attribute, like my_jobs.pdfs:deliver")
    module = imported(asked, module_name, folder)
    if not hasattr(module, attribute):
        raise UsageError(f"{asked}: {module_name} has no attribute {attribute}")
    return cast(UploadTask, getattr(module, attribute))


def _check_signature(task: UploadTask) -> None:
    try:
        inspect.signature(task.fn).bind(None)
    except TypeError as error:
        raise UsageError(
            f"upload task {task.name} is called with one argument, the WholeParent: {error}"
        ) from None
