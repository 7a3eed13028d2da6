"""Folders that processes of this machine share, and that go once none of them lives.

Who uses a folder has a shared lock on a file in it, which the kernel lets go when the process
ends, however it ends. Who sweeps needs that lock for itself alone: so nothing is removed that a
living process uses, whatever its number or the clocks say.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

LOCK = "in-use"

KEPT_S = 3600.0
"""How long what nobody uses is kept: all workers of a living job may be dead for a moment."""

_TRIES = 100

_held: dict[Path, int] = {}


def hold(folder: Path) -> Path:
    """Make `folder`, if it is not there, and keep it until this process ends. Raises OSError."""
    tries = 0
    while folder not in _held:
        try:
            _take(folder)
        except (FileNotFoundError, FileExistsError):
            # Swept just now.
            tries += 1
            if tries == _TRIES:
                raise
    return folder


def _take(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(file)
        if os.path.samestat(os.fstat(file), os.stat(folder / LOCK)):
            _held[folder] = file
    finally:
        if folder not in _held:
            os.close(file)


def sweep(root: Path, kept_s: float = KEPT_S) -> list[Path]:
    """Remove the folders below `root` that no process uses and none has begun to use for `kept_s`.

    Returns them. What cannot be removed stays: it is in nobody's way.
    """
    swept = []
    # `os.walk` passes over what goes meanwhile.
    for lock in [Path(folder, LOCK) for folder, _, files in os.walk(root) if LOCK in files]:
        with suppress(OSError):
            if time.time() - lock.stat().st_mtime > kept_s and _removed(lock):
                swept.append(lock.parent)
                _remove_empty(lock.parent.parent, root)
    return swept


def _removed(lock: Path) -> bool:
    file = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for each in lock.parent.iterdir():
            if each != lock:
                each.unlink()
        # Last, so that who waits for it finds it gone and begins anew.
        lock.unlink()
        lock.parent.rmdir()
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _remove_empty(folder: Path, root: Path) -> None:
    with suppress(OSError):  # another one is in it
        while folder != root:
            folder.rmdir()
            folder = folder.parent
