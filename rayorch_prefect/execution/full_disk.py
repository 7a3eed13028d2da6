"""Errors that say that a disk is full: which one, on which machine, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_FULL = 0.02
_WHAT_TO_DO = (
    "free disk space there, or set TMPDIR (and RAY_TMPDIR for Ray's own files) to a larger disk, "
    "and run again: what is published stays"
)


def is_full_disk(error: BaseException) -> bool:
    """Whether the system refused to write for lack of space, or of the user's share of it."""
    return isinstance(error, OSError) and error.errno in _FULL


def explained(error: BaseException) -> str:
    """What an error says; of a full disk also where that is and what to do."""
    if not is_full_disk(error):
        return str(error)
    return f"{error}{_told(_places(error))}"


def among(*places: Path | str) -> str:
    """To be added to an error that may come of it: which of these places are on a full disk, and
    what to do; empty if none is."""
    full = [place for place in map(Path, places) if _is_full(place)]
    return _told(full) if full else ""


def temporary_folders() -> tuple[str, str]:
    """Where Ray keeps its session and its values that memory does not hold, and where others do."""
    default = tempfile.gettempdir()
    return os.environ.get("RAY_TMPDIR") or default, default


def _told(places: list[Path]) -> str:
    where = "; ".join(map(_shown, places)) or "which one is not known"
    return f"; the disk is full on {socket.gethostname()} ({where}): {_WHAT_TO_DO}"


def _places(error: BaseException) -> list[Path]:
    """The folder that the error names; else those that are written to by default and are full.

    A write to an open file names none.
    """
    named = getattr(error, "filename", None)
    if isinstance(named, str | bytes):
        return [Path(os.fsdecode(named)).absolute().parent]
    usual = dict.fromkeys(map(Path, (*temporary_folders(), os.getcwd(), "/dev/shm")))
    return [place for place in usual if _is_full(place)]


def _is_full(place: Path) -> bool:
    with suppress(OSError):
        usage = shutil.disk_usage(place)
        return usage.free <= _NEARLY_FULL * usage.total
    return False


def _shown(place: Path) -> str:
    with suppress(OSError):
        usage = shutil.disk_usage(place)
        return f"{place}: {usage.free // 1024**2} of {usage.total // 1024**2} MiB are free"
    return str(place)
