"""A recording as it lies in its file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import Event
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.replay.encoding import decode
from rayorch_prefect.replay.frames import read_frames
from rayorch_prefect.replay.plans import plan_from

CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class Step:
    """One event (None: the start) that the Scheduler was given `at_s` seconds after it began.

    `kinds` and `check` are of the instructions that followed; None if the event was refused.
    """

    number: int
    at_s: float
    event: Event | None
    kinds: str | None
    check: int | None


class Recording:
    """Read from its file as it is asked for.

    `began` is the time of day, in seconds since 1970. Raises UsageError for a file that is no
    recording, or one of another version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        head = next(self._frames(), None)
        if head is None or "plan" not in head:
            raise UsageError(f"{path} is empty: the run ended before a frame was written")
        self.plan: Plan = plan_from(head["plan"])
        self.options: Mapping[str, Any] = head["options"]
        self.made_by: str = head["rayorch_prefect"]
        self.began: float = head["began"]
        self.keys: dict[int, list[str]] = {}
        """Source keys of each microbatch, as far as it has been read."""
        self.end = CUT_OFF
        """How it ended, once all has been read."""
        self.state: str | None = None
        """The digest of the Scheduler's last state, once all has been read; None if cut off."""

    def steps(self) -> Iterator[Step]:
        """All steps, up to the last whole frame."""
        number = 0
        for frame in self._frames():
            self.keys.update(dict(frame.get("keys", ())))
            self.end = frame.get("end", self.end)
            self.state = frame.get("state", self.state)
            for at_ms, event, *answer in frame.get("steps", ()):
                kinds, check = answer or (None, None)
                yield Step(number, at_ms / 1000, decode(event), kinds, check)
                number += 1

    def _frames(self) -> Iterator[dict[str, Any]]:
        for payload in read_frames(self.path):
            try:
                yield json.loads(payload)
            except ValueError as error:
                raise UsageError(f"{self.path} is damaged: {error}") from None
