"""Where a worker is: the batch and the row that it runs, where other processes can read it.

A worker whose stage holds the interpreter's lock answers nobody. So it writes each row that it
starts into a few bytes of memory, which a reader on its node finds under `path`. Both use the
node's monotonic clock. Writing takes about a microsecond.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from dataclasses import dataclass

# The turn stands at both ends: they differ while a write is under way.
_FORM = struct.Struct("=qqqdq")
_TRIES = 8
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Place:
    """Batch and row that a worker runs (`NO_ROW` between rows), and the row's seconds so far."""

    batch: int
    row: int
    row_s: float


class Marker:
    """What a worker writes."""

    def __init__(self) -> None:
        self._file, self.path = _open()
        os.ftruncate(self._file, _FORM.size)
        self._memory = mmap.mmap(self._file, _FORM.size)
        self._turn = 0
        self._batch = NO_ROW
        self.between_rows(NO_ROW)

    def row(self, row: int) -> None:
        """The worker starts a row of its batch."""
        self._turn += 1
        turn = self._turn
        _FORM.pack_into(self._memory, 0, turn, self._batch, row, time.monotonic(), turn)

    def between_rows(self, batch: int) -> None:
        """The worker is at a batch, but at no row of it."""
        self._batch = batch
        self.row(NO_ROW)

    def close(self) -> None:
        """Nobody will read it any more."""
        self._memory.close()
        os.close(self._file)
        if not self.path.startswith("/proc/"):
            os.unlink(self.path)


def _open() -> tuple[int, str]:
    """A file that goes with its process, where the system has such."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("rayorch-place", os.MFD_CLOEXEC)
        return file, f"/proc/{os.getpid()}/fd/{file}"
    return tempfile.mkstemp(prefix="rayorch-place-")


def read(path: str) -> Place | None:
    """Where the worker is; None if it is gone, or wrote each time this looked."""
    try:
        for _ in range(_TRIES):
            with open(path, "rb") as file:
                first, batch, row, since, last = _FORM.unpack(file.read(_FORM.size))
            if first == last:
                return Place(batch, row, time.monotonic() - since)
    except (OSError, struct.error):
        pass
    return None
