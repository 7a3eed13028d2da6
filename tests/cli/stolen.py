"""`rayorch-prefect run`, which gets SIGTERM the moment that Ray takes it over.

`python -m tests.cli.stolen run ...`: a thread looks at what the process does on SIGTERM, as the
system sees it, and sends it when that has changed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

from rayorch_prefect.binding import night
from rayorch_prefect.cli.main import main

_LIBC = ctypes.CDLL(None)


class _Action(ctypes.Structure):
    _fields_ = [("handler", ctypes.c_void_p), ("rest", ctypes.c_byte * 256)]


def _handler() -> int | None:
    action = _Action()
    _LIBC.sigaction(signal.SIGTERM, None, ctypes.byref(action))
    handler: int | None = action.handler
    return handler


def _send_when_taken(pythons: int | None) -> None:
    while _handler() == pythons:
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGTERM)
    print("sent", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Long enough that the moment is not missed on a busy machine.
    night._SIGTERM_SECONDS = 5.0  # pyright: ignore[reportPrivateUsage]
    signal.signal(signal.SIGTERM, lambda *_: None)
    threading.Thread(target=_send_when_taken, args=(_handler(),), daemon=True).start()
    sys.exit(main())
