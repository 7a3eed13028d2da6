"""Standard output kept for what a program reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO


@contextmanager
def printed_on_stderr(when: bool) -> Iterator[None]:
    """Whatever is written to standard output inside goes to standard error, if `when`.

    That of C code and of processes begun inside too, so the file descriptor is moved.
    """
    if not when:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def kept_stdout() -> TextIO:
    """What was standard output; whatever writes to that goes to standard error from now on.

    It stays so: hooks and threads of a night may still print while the process ends.
    """
    sys.stdout.flush()
    kept = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return kept
