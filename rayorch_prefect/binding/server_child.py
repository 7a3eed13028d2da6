"""The process of a local Prefect server: it ends with the process that started it.

Run by its path, `server_child.py server start ...`, with a pipe as its standard input that only
the starter holds the other end of. A starter that was killed cannot stop its server; but then the
pipe ends.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

STOP_SECONDS = 10.0


def main() -> None:
    """Run Prefect's command line with our arguments."""
    pipe = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    threading.Thread(target=_end_with_the_starter, args=(pipe,), daemon=True).start()
    sys.argv[0] = "prefect"
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


def _end_with_the_starter(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    # The server is the first of a session of its own, so this reaches what it has started too.
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
