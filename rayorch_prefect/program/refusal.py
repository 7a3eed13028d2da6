"""Refusals with the user's file and line."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import NoReturn

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program.plan import Where

_OURS = __name__.rpartition(".")[0]


def user_where() -> Where:
    """The nearest file and line outside this package."""
    frame = inspect.currentframe()
    while frame is not None and _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return Where("<unknown>", 0)
    return Where(frame.f_code.co_filename, frame.f_lineno)


def refuse(message: str, where: Where | None = None) -> NoReturn:
    """Raise ProgramError with the user's file and line before the message."""
    raise ProgramError(f"{where or user_where()}: {message}")


def shown(value: object) -> str:
    """A short text of any value, for messages."""
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module == _OURS or module.startswith(_OURS + ".")
