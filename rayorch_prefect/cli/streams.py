"""Standard output kept for what a program reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


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
