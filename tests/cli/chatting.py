"""A hook that is slow and prints."""

from __future__ import annotations

import time


def tell_slowly(end: object) -> None:
    """Prints for longer than a cancelled night waits for its hooks."""
    for _ in range(20_000):
        time.sleep(0.001)
        print("told", flush=True)
