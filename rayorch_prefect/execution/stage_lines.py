"""What stages log, on the driver's side: whose rows a line is about, and whom it is shown to.

Whoever owns a microbatch gets the lines about its parents, bounded; what was left out is counted
and said at its end, so nothing is lost in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from rayorch_prefect.execution.backend import LinesCame
from rayorch_prefect.execution.log_lines import MOST_A_SECOND as OF_A_WORKER
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.replay.redaction import redaction
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.telling import Told, remembered_numbers, rows_told

logger = logging.getLogger("rayorch_prefect.stages")

MOST_A_SECOND = 50
MOST_LINES = 1000
"""Lines of a microbatch that are shown; the others are counted. So are those of no microbatch."""


@dataclass(frozen=True, slots=True)
class StageLine:
    """A line that a stage logged, without secrets and shortened.

    `parent` is the index in its microbatch of the source row that it is about, None if it is about
    none; `key` is that row's, `path` the ordinals from it down to the Entity whose row logged it.
    Of a whole batch, `others` counts the further parents there. `level` is Python's.
    """

    stage: str
    level: int
    text: str
    parent: int | None = None
    key: str = ""
    domain: str = ""
    path: tuple[int, ...] = ()
    others: int = 0

    def shown(self, key: str | None = None) -> str:
        """The line for a log; `key` is what the parent is called there."""
        parts = [f"stage {self.stage}"] if self.stage else []
        if self.parent is not None:
            more = f" and {self.others} more" if self.others else ""
            parts.append(f"{self.key if key is None else key}{more}")
        if self.path:
            parts.append(f"{self.domain} {'/'.join(map(str, self.path))}")
        return f"{', '.join(parts)}: {self.text}" if parts else self.text

    def __str__(self) -> str:
        return self.shown()


OnLine: TypeAlias = Callable[[StageLine], None]


def log_line(line: StageLine) -> None:
    """Where lines go that nobody else takes: the logger `rayorch_prefect.stages`."""
    logger.log(line.level, "%s", line)


class Audience:
    """Who is shown the lines of one microbatch, or of none."""

    def __init__(self, keys: Sequence[str], show: OnLine, timer: Callable[[], float]) -> None:
        self.keys = keys
        self._show = show
        self._timer = timer
        self._second = 0.0
        self._in_second = 0
        self._shown = 0
        self.left_out = 0

    def has_room(self) -> bool:
        """Whether one line more is shown now; else it is counted."""
        now = self._timer()
        if now >= self._second + 1.0:
            self._second, self._in_second = now, 0
        room = self._in_second < MOST_A_SECOND and self._shown < MOST_LINES
        self._in_second += room
        self._shown += room
        self.left_out += not room
        return room

    def show(self, line: StageLine) -> None:
        """Pass a line on; whatever its taker does, the run goes on."""
        try:
            self._show(line)
        except Exception:
            logger.exception("on_line raised; it had been told: %s", line)

    def end(self) -> None:
        """Say how many were left out, if that has not been said."""
        left_out, self.left_out = self.left_out, 0
        if left_out:
            said = (
                f"{left_out} more lines that stages logged are not shown: at most {MOST_A_SECOND} "
                f"a second and {MOST_LINES} in all, and {OF_A_WORKER} a second of one worker"
            )
            self.show(StageLine("", logging.WARNING, said))


class StageLines:
    """Takes what workers caught to those whom it concerns.

    `show` gets what is about no microbatch, and about those that were admitted without one.
    """

    def __init__(
        self, plan: Plan, scheduler: Scheduler, show: OnLine, timer: Callable[[], float]
    ) -> None:
        self._plan = plan
        self._scheduler = scheduler
        self._show = show
        self._timer = timer
        self._all = Audience((), show, timer)
        self._of: dict[int, Audience] = {}

    def admits(self, microbatch: int, keys: Sequence[str], show: OnLine | None) -> None:
        """A microbatch is about to be admitted."""
        told = remembered_numbers(self._scheduler)
        for number in [number for number in self._of if number not in told]:
            self._of.pop(number).end()
        self._of[microbatch] = Audience(keys, show or self._show, self._timer)

    def ended(self, microbatch: int) -> None:
        """A microbatch has left; of the last of its batches lines may still come."""
        if audience := self._of.get(microbatch):
            audience.end()

    def close(self, last: Sequence[LinesCame]) -> None:
        """No more lines come after these."""
        for message in last:
            self.came(message)
        for audience in (self._all, *self._of.values()):
            audience.end()

    def came(self, message: LinesCame) -> None:
        """Show what a worker has caught."""
        stage = self._plan.pools[message.pool].stage
        for line in message.lines:
            for audience, about in self._about(line.batch, line.row):
                if audience.has_room():
                    text = self._redact(line.text)
                    audience.show(_line(stage, line.level, text, about, audience.keys))
        for batch, n in message.left_out:
            for audience, _ in self._about(batch, -1):
                audience.left_out += n

    @cached_property
    def _redact(self) -> Callable[[str], str]:
        return redaction()

    def _about(self, batch: int, row: int) -> list[tuple[Audience, Told | None]]:
        """Each audience that a batch concerns, and whom of its microbatch."""
        found = [
            (self._of[told.microbatch], told)
            for told in rows_told(self._scheduler, batch, row)
            if told.microbatch in self._of
        ]
        return [*found] or [(self._all, None)]


def _line(stage: str, level: int, text: str, about: Told | None, keys: Sequence[str]) -> StageLine:
    if about is None:
        return StageLine(stage, level, text)
    parent, others = about.parents[0], len(about.parents) - 1
    return StageLine(stage, level, text, parent, keys[parent], about.domain, about.path, others)
