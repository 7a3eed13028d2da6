"""Functions of the user's that are told of the ends of parents and microbatches."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, cast

from prefect.logging import get_run_logger

from rayorch_prefect.binding.listeners import End, MicrobatchEnd
from rayorch_prefect.binding.loading import imported
from rayorch_prefect.binding.texts import traceback_text
from rayorch_prefect.errors import UsageError

ON_PARENT_PUBLISHED = "on_parent_published"
ON_PARENT_FAILED = "on_parent_failed"
ON_MICROBATCH_END = "on_microbatch_end"
HOOKS = (ON_PARENT_PUBLISHED, ON_PARENT_FAILED, ON_MICROBATCH_END)

# A function of one ParentEnd or MicrobatchEnd, async or not; its result does not matter.
Hook: TypeAlias = Callable[[Any], object]

# Beyond these, a hook that fails each time would fill the log.
_SAID = 10


def loaded_hooks(hooks: Mapping[str, str | Hook] | None, folder: str | None) -> dict[str, Hook]:
    """The functions themselves, by hook; those given as `module:attribute` are imported.

    Raises UsageError: a hook of another name, a module that does not import, an attribute that is
    not there, something that cannot be called with one argument.
    """
    return {name: _loaded(name, hook, folder) for name, hook in (hooks or {}).items()}


def check_hooks(hooks: Mapping[str, Any]) -> None:
    """Raise UsageError for a hook that there is not."""
    for name in hooks:
        if name not in HOOKS:
            raise UsageError(f"hook {name!r}: expected one of {', '.join(HOOKS)}")


class Hooks:
    """Calls the hook that an end is for. One that raises is logged, and changes nothing."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        self.failed = 0
        self._hooks = hooks

    def tell(self, end: End) -> None:
        name = _name(end)
        hook = self._hooks.get(name)
        if hook is None:
            return
        try:
            result = hook(end)
            if inspect.iscoroutine(result):
                asyncio.run(cast(Coroutine[Any, Any, object], result))
        except BaseException:  # sys.exit() too: it would end the thread that tells of all others
            self.failed += 1
            if self.failed <= _SAID:
                text = "the hook %s raised for %s:\n%s"
                get_run_logger().warning(text, name, _of(end), traceback_text())


def _name(end: End) -> str:
    if isinstance(end, MicrobatchEnd):
        return ON_MICROBATCH_END
    return ON_PARENT_FAILED if end.kind else ON_PARENT_PUBLISHED


def _of(end: End) -> str:
    return f"microbatch {end.index}" if isinstance(end, MicrobatchEnd) else end.key


def _loaded(name: str, hook: str | Hook, folder: str | None) -> Hook:
    check_hooks({name: hook})
    asked = f"hook {name} {hook!r}"
    found: Any = _of_name(asked, hook, folder) if isinstance(hook, str) else hook
    if not callable(found):
        raise UsageError(f"{asked} is a {type(found).__name__}; expected a function")
    try:
        inspect.signature(found).bind(None)
    except TypeError as error:
        raise UsageError(f"{asked} is called with one argument, what has ended: {error}") from None
    except ValueError:
        pass  # a built-in that does not say what it takes
    return cast(Hook, found)


def _of_name(asked: str, name: str, folder: str | None) -> Any:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{asked}: expected module:attribute, like my_jobs.pager:page")
    module = imported(asked, module_name, folder)
    if not hasattr(module, attribute):
        raise UsageError(f"{asked}: {module_name} has no attribute {attribute}")
    return getattr(module, attribute)
