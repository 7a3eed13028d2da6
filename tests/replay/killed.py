"""A recorded run whose process is killed from outside of Python, as by a lack of memory."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from rayorch_prefect import program, run_local, stage

ROWS = 400
LAST = 350


def work(row: int) -> int:
    if row == LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    return row


@program
def lethal(row: Any) -> Any:
    return stage(work, batch_size=1)(row)


if __name__ == "__main__":
    for _ in run_local(lethal, range(ROWS), record=sys.argv[1]):
        pass
