"""What a stage logs in its worker, caught for the driver.

A line waits in the worker until its driver, which always has a call open here, takes it: at most
half a second. Where nothing is logged there is no message. At most `MOST_A_SECOND` lines a second
are caught, the others are counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import Any

from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution.departure import Departures
from rayorch_prefect.execution.messages import Line, LinesTaken
from rayorch_prefect.execution.plain_text import MOST_READ, plain_text
from rayorch_prefect.execution.whereabouts import here
from rayorch_prefect.replay.redaction import redaction

MOST_A_SECOND = 20
LONGEST_LINE = 2000
GATHER_S = 0.5
"""How long the driver waits after lines until it takes others."""

OFF, WARNING = "OFF", "WARNING"
LEVELS = ("DEBUG", "INFO", WARNING, "ERROR", "CRITICAL", OFF)
WHOLE_WORKER = -1
"""The batch of a line that belongs to none, and the row of one that belongs to no single row."""

# A line that is taken at once leaves within a millisecond or two where the machine is not full.
_LEAVES_S = 0.1
_CUT = " … "


def checked_level(level: str, setting: str = "log_level") -> str:
    """One of `LEVELS`. Raises UsageError for another, naming the setting."""
    if level not in LEVELS:
        raise UsageError(f"{setting} is {level!r}; expected one of {', '.join(LEVELS)}")
    return level


class LogLines(logging.Handler):
    """Catches from `begin` on; `woken` is called, from any thread, when there is something to take.

    Other processes that a stage forks write to their standard error, as without this.
    """

    def __init__(self, woken: Callable[[], None]) -> None:
        super().__init__()
        self._woken = woken
        self._pid = os.getpid()
        self._before = logging.lastResort
        self._lines: list[Line] = []
        self._left_out: dict[int, int] = {}
        self._guard = threading.Lock()
        self._leaving = threading.Lock()
        self._departures = Departures()
        self._emitting = threading.local()
        self._second = 0.0
        self._in_second = 0
        self._taken_at = 0.0
        self._asked = False
        self._ended = False

    # -- catching ------------------------------------------------------------------------------

    def begin(self, level: str) -> None:
        """Catch what is logged from `level` on; nothing with OFF."""
        if level == OFF:
            return
        self.setLevel(level)
        root = logging.getLogger()
        if root.level > self.level:
            root.setLevel(self.level)
        root.addHandler(self)
        logging.basicConfig = self._beside(logging.basicConfig)

    def _beside(self, configure: Callable[..., None]) -> Callable[..., None]:
        """`logging.basicConfig` does nothing where somebody takes lines already: a stage that calls
        it is to find nobody."""

        def configured(**settings: Any) -> None:
            root = logging.getLogger()
            root.removeHandler(self)
            try:
                configure(**settings)
            finally:
                root.addHandler(self)

        return configured

    def built(self) -> None:
        """The stage is built; one that set its logging up anew has thrown others out."""
        if self.level:
            logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; never raises."""
        if os.getpid() != self._pid:
            if self._before is not None and logging.getLogger().handlers == [self]:
                self._before.handle(record)
        elif not getattr(self._emitting, "now", False):
            # What is logged while a line is put together would go on for ever.
            self._emitting.now = True
            try:
                self._keep(record)
            except Exception:
                self.handleError(record)
            finally:
                self._emitting.now = False

    def _keep(self, record: logging.LogRecord) -> None:
        gate = here()
        batch = WHOLE_WORKER if gate is None else gate.batch
        row = WHOLE_WORKER if gate is None else gate.row
        if self._has_room():
            line = Line(batch, row, record.levelno, self._shortened(_text(record)))
            with self._guard:
                self._lines.append(line)
            self._announce()
            return
        with self._guard:
            known = self._lines or self._left_out
            self._left_out[batch] = self._left_out.get(batch, 0) + 1
        if not known:
            self._woken()

    def _has_room(self) -> bool:
        now = time.monotonic()
        with self._guard:
            if now >= self._second + 1.0:
                self._second, self._in_second = now, 0
            self._in_second += 1
            return self._in_second <= MOST_A_SECOND

    def _announce(self) -> None:
        """Have lines taken. If that is done at once, wait until they have left: the stage may end
        its process next."""
        if not self._asked or self.due_s != 0.0 or not self._leaving.acquire(blocking=False):
            self._woken()
            return
        try:
            self._departures.expect()
            self._woken()
            self._departures.wait(_LEAVES_S)
        finally:
            self._leaving.release()

    def _shortened(self, text: str) -> str:
        text = plain_text(text, MOST_READ, self._redact)
        if len(text) <= LONGEST_LINE:
            return text
        # A traceback says at its end what was raised.
        half = (LONGEST_LINE - len(_CUT)) // 2
        return f"{text[:half]}{_CUT}{text[-half:]}"

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        return redaction()

    # -- taking --------------------------------------------------------------------------------

    def asked(self) -> float | None:
        """The driver waits for lines: how long until they are to be taken, in seconds; None where
        there are none yet."""
        self._asked = True
        return self.due_s

    @property
    def due_s(self) -> float | None:
        """When lines are to be taken; at once when the worker ends."""
        if self._ended:
            return 0.0
        if not self._lines and not self._left_out:
            return None
        return max(0.0, self._taken_at + GATHER_S - time.monotonic())

    def take(self) -> LinesTaken:
        """All that waits."""
        with self._guard:
            lines, self._lines = tuple(self._lines), []
            left_out, self._left_out = tuple(self._left_out.items()), {}
            self._taken_at = time.monotonic()
            self._asked = False
        return LinesTaken(lines, left_out, self._ended)

    def end(self) -> None:
        """The worker closes: what there is, is taken at once."""
        self._ended = True
        if self._lines or self._left_out:
            self._announce()
        else:
            self._woken()


def _text(record: logging.LogRecord) -> str:
    """What is said, by whom, and what was raised."""
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"{record.msg} (its arguments do not fit: {error})"
    if record.exc_info:
        with suppress(Exception):
            text = f"{text}\n{_FORM.formatException(record.exc_info)}"
    return text if record.name == "root" else f"{record.name}: {text}"


_FORM: Any = logging.Formatter()
