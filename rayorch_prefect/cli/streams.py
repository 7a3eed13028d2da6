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
    kept = _stdout_moved()
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
    if before is not sys.__stdout__:  # somebody else's process
        with printed_on_stderr(True):
            yield partial(print, file=before, flush=True)
        return
    kept = _stdout_moved()
    sys.stdout = sys.stderr
    yield partial(print, file=os.fdopen(kept, "w"), flush=True)


def _stdout_moved() -> int:
    """What is written to descriptor 1 goes where 2 goes; a descriptor of where it went before."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept
