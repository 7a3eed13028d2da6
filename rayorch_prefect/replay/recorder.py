"""Writing a run's events down as they happen.

Each frame is an object: first one that says what run it is, then ones with steps, at last one that
says how the recording ended. A step is

    [milliseconds since the start, event, kinds of its instructions, rolling CRC-32 of these]

and lacks the last two where the event was the one that the Scheduler could not take. The first
step's event is None: it is the Scheduler's start.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any

from rayorch_prefect._version import VERSION
from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import Event, Instruction
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.replay.encoding import encoder
from rayorch_prefect.replay.frames import FrameWriter
from rayorch_prefect.replay.plans import plain_plan
from rayorch_prefect.replay.redaction import redaction
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.digest import state_digest

logger = logging.getLogger(__name__)

SUFFIX = ".recording"
MOST_MB = 256.0
MOST_STEPS = 256
LONGEST_WAIT_S = 1.0
# What the last frame takes, with room to spare.
_LAST_FRAME = 4096


def new_file(folder: str | Path, name: str) -> Path:
    """A file in `folder` that is not there yet, named after `name` and the time of day."""
    plain = re.sub(r"[^\w.-]+", "-", name)
    stem = f"{plain}-{datetime.now():%Y%m%d-%H%M%S}"
    numbered = (f"{stem}-{n}" if n else stem for n in count())
    paths = (Path(folder, f"{one}{SUFFIX}") for one in numbered)
    return next(path for path in paths if not path.exists())


def require_folder(folder: str | Path) -> None:
    """Raises UsageError if no file can be made in `folder`, which need not be there yet."""
    path = Path(folder).absolute()
    known = next(one for one in (path, *path.parents) if one.exists())
    if not known.is_dir() or not os.access(known, os.W_OK | os.X_OK):
        raise UsageError(
            f"record is {str(folder)!r}; expected a folder that can be written to, and {known} "
            f"{'cannot' if known.is_dir() else 'is a file'}"
        )


class Recorder:
    """The recording of one Scheduler, in a new file that ends at about `most_mb` MiB.

    What goes wrong while it writes ends the recording with one warning, never the run. Raises
    UsageError if the file is there already or cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        most_mb: float = MOST_MB,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(most_mb, bool) or not 0 < most_mb < math.inf:
            raise UsageError(f"record_mb is {most_mb!r}; expected more than 0 MiB")
        self.path = Path(path)
        self.due = math.inf
        """When `flush` is to be called, in the timer's seconds."""
        self._most_mb = most_mb
        self._timer = timer
        self._begun = timer()
        self._redact = redaction()
        self._encode = encoder(self._redact)
        self._steps: list[list[Any]] = []
        self._keys: dict[int, list[str]] = {}
        self._written = 0
        self._crc = 0
        self._frames: FrameWriter | None = self._opened()

    def _opened(self) -> FrameWriter:
        try:
            if self.path.exists():
                raise UsageError(
                    f"the recording {self.path} is there already; name a new file, or remove it"
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return FrameWriter(self.path)
        except OSError as error:
            raise UsageError(
                f"the recording {self.path} cannot be made ({error.strerror}); name a file in a "
                "folder that can be written to"
            ) from None

    def begin(self, plan: Plan, options: Mapping[str, Any]) -> None:
        """Say what run it is; `options` are the Scheduler's, as plain data."""
        head = {"rayorch_prefect": VERSION, "began": time.time(), "options": options}
        self._safely(lambda: self._write({**head, "plan": plain_plan(plan)}))

    def rows(self, microbatch: int, keys: Sequence[str]) -> None:
        """The keys of the rows that are admitted next."""
        if self._frames is not None:
            self._keys[microbatch] = [self._redact(key) for key in keys]

    def given(self, event: Event | None) -> None:
        """The Scheduler is about to handle an event (None: to start)."""
        if self._frames is None:
            return
        now = self._timer()
        if now >= self.due or len(self._steps) >= MOST_STEPS:
            self.flush()
        if not self._steps:
            self.due = now + LONGEST_WAIT_S
        self._steps.append([round((now - self._begun) * 1000), event])

    def told(self, instructions: Sequence[Instruction]) -> None:
        """What it answered."""
        if self._frames is not None and self._steps:
            self._safely(lambda: self._steps[-1].extend(self._answer(instructions)))

    def _answer(self, instructions: Sequence[Instruction]) -> tuple[str, int]:
        self._crc = crc_of(self._encode(instructions), self._crc)
        return kinds_of(instructions), self._crc

    def flush(self) -> None:
        """Write down what has come since the last frame."""
        self.due = math.inf
        if self._frames is None or not self._steps:
            return
        steps, self._steps = self._steps, []
        keys, self._keys = self._keys, {}
        self._written += len(steps)
        self._safely(lambda: self._write({"steps": steps, "keys": list(keys.items())}))
        limit = self._most_mb * (1 << 20) - _LAST_FRAME
        if self._frames is not None and self._frames.size > limit:
            said = f"the recording {self.path} has reached its limit of {self._most_mb:g} MiB"
            self._stop(said, {"end": "size limit"})

    def close(self, scheduler: Scheduler) -> None:
        """The run is over: the last frame has the digest of all that the Scheduler knows."""
        self.flush()
        if self._frames is not None:
            self._safely(lambda: self._write(self._end(scheduler)))
        self._leave()

    def _end(self, scheduler: Scheduler) -> dict[str, Any]:
        return {"end": "closed", "state": state_digest(scheduler, self._redact)}

    def _write(self, frame: Mapping[str, Any]) -> None:
        if self._frames is not None:
            self._frames.add(self._encode(frame).encode())

    def _safely(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._stop(f"the recording {self.path} cannot go on ({error!r})", None)

    def _stop(self, why: str, mark: Mapping[str, Any] | None) -> None:
        """One warning; where the file can still be written to, a mark."""
        if self._frames is None:
            return
        if mark is not None:
            try:
                self._write(mark)
            except OSError as error:
                why = f"{why}; its mark could not be written ({error})"
        self._leave()
        logger.warning("%s: the run goes on, and %d of its steps are there", why, self._written)

    def _leave(self) -> None:
        if self._frames is not None:
            self._frames.close()
        self._frames = None
        self._steps.clear()
        self.due = math.inf


def crc_of(encoded: str, before: int) -> int:
    """The rolling check of all instructions up to these."""
    return zlib.crc32(encoded.encode(), before)


def kinds_of(instructions: Sequence[Instruction]) -> str:
    """What instructions there are, in order: "DispatchBatch*2 ReleaseValues"."""
    found: list[str] = []
    for cls, run in groupby(map(type, instructions)):
        n = sum(1 for _ in run)
        found.append(cls.__name__ if n == 1 else f"{cls.__name__}*{n}")
    return " ".join(found)
