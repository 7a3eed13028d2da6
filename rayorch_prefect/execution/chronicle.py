"""What a Driver's Scheduler is told, and when: for stories, and for a recording if one is wanted.

It costs an event a fraction of a microsecond, and with a recording what that costs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime

from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import Event, Instruction
from rayorch_prefect.replay.recorder import Recorder
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.telling import (
    When,
    by_number,
    parsed_path,
    remembered_numbers,
    story_of,
)

_TIMES = 8192


class Chronicle:
    """Hands events to a Scheduler and remembers when, the last of them.

    `clock` is the time of day in seconds. Not thread-safe.
    """

    def __init__(
        self, scheduler: Scheduler, clock: Callable[[], float], recorder: Recorder | None
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._recorder = recorder
        self._times: deque[float] = deque(maxlen=_TIMES)
        self._keys: dict[int, Sequence[str]] = {}
        if recorder is not None:
            recorder.begin(scheduler.plan, scheduler.options)

    # -- events --------------------------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """The Scheduler's start."""
        if self._recorder is None:
            return self._scheduler.start()
        self._recorder.given(None)
        instructions = self._scheduler.start()
        self._recorder.told(instructions)
        return instructions

    def handle(self, event: Event) -> list[Instruction]:
        """What the Scheduler answers to an event."""
        self._times.append(self._clock())
        if self._recorder is None:
            return self._scheduler.handle(event)
        self._recorder.given(event)
        instructions = self._scheduler.handle(event)
        self._recorder.told(instructions)
        return instructions

    def admits(self, microbatch: int, keys: Sequence[str]) -> None:
        """A microbatch with these source keys is about to be admitted."""
        told = remembered_numbers(self._scheduler)
        self._keys = {number: known for number, known in self._keys.items() if number in told}
        self._keys[microbatch] = keys
        if self._recorder is not None:
            self._recorder.rows(microbatch, keys)

    # -- the recording -------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When `tick` is to be called, in the timer's seconds."""
        return math.inf if self._recorder is None else self._recorder.due

    def tick(self, now: float) -> None:
        """Write down what has waited for long enough."""
        if self._recorder is not None and now >= self._recorder.due:
            self._recorder.flush()

    def close(self) -> None:
        """The run is over; stories can still be told."""
        if self._recorder is not None:
            self._recorder.close(self._scheduler)

    # -- stories -------------------------------------------------------------------------------

    def story(self, key: str, path: str | Sequence[int] = (), when: When | None = None) -> str:
        """What became of the Entity at an ordinal path under the source rows with a key.

        Raises UsageError for a key, a path or an Entity that is not there.
        """
        ordinals = parsed_path(path)
        found = [
            (number, row)
            for number, keys in self._keys.items()
            for row, known in enumerate(keys)
            if known == key
        ]
        if not found:
            raise UsageError(
                f"no source row with the key {key!r} is remembered; expected a row's whole key, of "
                f"{len(self._keys)} microbatches that are active or ended not long ago"
            )
        told = (story_of(self._scheduler, *one, ordinals, when or self._when) for one in found)
        return "\n".join(f"{key}: {one}" for one in told)

    def _when(self, event: int) -> str:
        back = event - self._scheduler.memory.now
        if -back > len(self._times):
            return by_number(event)
        moment = datetime.fromtimestamp(self._times[back])
        return f"{by_number(event)}, {moment:%H:%M:%S.%f}"[:-3]
