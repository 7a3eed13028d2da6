"""How long paused Calls wait for their backends, and what is said of it."""

from __future__ import annotations

import logging
import math

from rayorch_prefect.model.events import PauseCall, ProbeDue
from rayorch_prefect.program.plan import Plan

logger = logging.getLogger(__name__)

FIRST_PROBE_S = 1.0
LONGEST_GAP_S = 30.0


class Pauses:
    """Owner of the timers of paused Calls; times in the driver's seconds."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._since: dict[int, float] = {}
        self._due: dict[int, float] = {}

    @property
    def next(self) -> float:
        """When the next probe is due; infinity if none is."""
        return min(self._due.values(), default=math.inf)

    def pause(self, pause: PauseCall, now: float) -> None:
        """A Call waits: the longer, the more probes have failed."""
        call = self._plan.calls[pause.call]
        if not pause.probes:
            self._since[pause.call] = now
        gap = min(FIRST_PROBE_S * 2**pause.probes, LONGEST_GAP_S)
        patience = self._plan.pools[call.pool].backend_patience_s or 0.0
        ends = self._since.setdefault(pause.call, now) + patience
        self._due[pause.call] = min(now + gap, max(ends, now))
        logger.warning(
            "stage %s is paused, the service or disk behind it is down: %s; probing again in "
            "%.0f s, giving up in %.0f s",
            call.stage,
            pause.message,
            self._due[pause.call] - now,
            max(ends - now, 0.0),
        )

    def resume(self, call: int, now: float) -> None:
        """The backend answers again."""
        self._due.pop(call, None)
        paused = now - self._since.pop(call, now)
        logger.warning("stage %s goes on after %.0f s", self._plan.calls[call].stage, paused)

    def due(self, now: float) -> list[ProbeDue]:
        """What is to be said to the scheduler now."""
        calls = [call for call, due in self._due.items() if due <= now]
        for call in calls:
            del self._due[call]
        return [ProbeDue(call, given_up=self._is_over(call, now)) for call in calls]

    def _is_over(self, call: int, now: float) -> bool:
        patience = self._plan.pools[self._plan.calls[call].pool].backend_patience_s or 0.0
        return now - self._since[call] >= patience
