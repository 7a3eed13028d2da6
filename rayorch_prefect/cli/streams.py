"""Standard output kept for what a program reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial


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


@contextmanager
def kept_for_an_object(when: bool) -> Iterator[Callable[[str], None]]:
    """Inside, all that is written to standard output goes to standard error, if `when`, but for
    what the function prints that is given.

    In a process of our own it stays so: hooks and threads may still print while that ends.
    """
    if not when:
        yield print
        return
    before = sys.stdout
    before.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    ours = before is sys.__stdout__
    where = os.fdopen(kept, "w") if ours else before
    try:
        yield partial(print, file=where, flush=True)
    finally:
        if not ours:
            sys.stdout = before
            os.dup2(kept, 1)
            os.close(kept)
