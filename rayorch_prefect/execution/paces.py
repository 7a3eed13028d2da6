"""How many short batches travel together to a worker and back.

A call to an actor costs the driver and the worker a millisecond between them, whatever it carries
(`docs/adr/0023`). Where batches take less, several go in one call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rayorch_prefect.execution.blocks import Recipe
from rayorch_prefect.execution.shared_calls import MOST_BYTES
from rayorch_prefect.model.events import Event, WorkersMayHold
from rayorch_prefect.program.plan import Plan, Pool

# What one call may keep a worker busy for: so long the first of its batches waits for the last.
TOGETHER_S = 0.008
MOST_TOGETHER = 8
# Batches that are looked at, and those that go alone after one that was not short, or a death.
LOOKED_AT = 8
ALONE = 64
# A batch that is away for longer is not short: those behind it are to get another worker.
AWAY_S = 0.25


@dataclass(slots=True)
class _Pace:
    """What the latest batches of a pool took: seconds and bytes."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LOOKED_AT))
    size: deque[int] = field(default_factory=lambda: deque(maxlen=LOOKED_AT))
    together: int = 1
    alone: int = 0

    def wanted(self) -> int:
        """A power of two, so that it seldom changes."""
        if self.alone or len(self.seconds) < LOOKED_AT:
            return 1
        times = TOGETHER_S * LOOKED_AT / max(sum(self.seconds), 1e-9)
        sizes = MOST_BYTES * LOOKED_AT / max(sum(self.size), 1)
        fit = min(MOST_TOGETHER, int(min(times, sizes)))
        return 1 << (fit.bit_length() - 1) if fit else 1


class Paces:
    """Owner of how many batches of each pool may share a call. Times in the driver's seconds.

    Those with a limit of time do not share: each batch's clock is its own. A worker holds
    `at_worker` calls.
    """

    def __init__(self, plan: Plan, at_worker: int, shares: bool) -> None:
        self._at_worker = at_worker
        self._pool_of = [call.pool for call in plan.calls]
        in_portions = {call.pool for call in plan.calls if call.chunked}
        self._pools = {
            pool.id: _Pace()
            for pool in plan.pools
            if shares and may_share(pool) and pool.id not in in_portions
        }
        self._look = math.inf

    def together(self, call: int) -> int:
        """How many batches of the Call's pool may share a call to a worker."""
        pace = self._pools.get(self._pool_of[call])
        return 1 if pace is None else pace.together

    def leaves(self, batch: Recipe, now: float) -> int:
        """With how many a batch may share the call by which it leaves; it is looked after."""
        together = 1 if batch.alone else self.together(batch.call)
        batch.shares = together > 1
        if batch.shares:
            self._look = min(self._look, now + AWAY_S)
        return together

    def ran(self, call: int, seconds: float, size: int) -> list[Event]:
        """A batch came back with so many bytes: what the scheduler is told if that changes how
        many may share."""
        pool = self._pool_of[call]
        pace = self._pools.get(pool)
        if pace is None:
            return []
        pace.seconds.append(seconds)
        pace.size.append(size)
        pace.alone = ALONE if seconds > AWAY_S else max(0, pace.alone - 1)
        return self._changed(pool, pace, pace.wanted())

    def alone(self, pool: int) -> list[Event]:
        """Batches of the pool go alone for a while."""
        pace = self._pools.get(pool)
        if pace is None:
            return []
        pace.alone = ALONE
        return self._changed(pool, pace, 1)

    def _changed(self, pool: int, pace: _Pace, together: int) -> list[Event]:
        before, pace.together = pace.together, together
        return [] if before == together else [WorkersMayHold(pool, self._at_worker * together)]

    @property
    def next(self) -> float:
        """When `late` is to be asked, at the earliest; infinity if never."""
        return self._look

    def late(self, now: float, away: Iterable[Recipe]) -> list[int]:
        """Pools of which a batch that may share its call is late, of those that are `away`. They
        are told again and again: what comes behind it in its call may be late as well."""
        if now < self._look:
            return []
        shared = [batch for batch in away if batch.shares]
        self._look = now + AWAY_S if shared else math.inf
        return sorted({self._pool_of[one.call] for one in shared if now - one.since >= AWAY_S})


def may_share(pool: Pool) -> bool:
    """Whether batches of the pool may share a call at all."""
    return not pool.is_concurrent and pool.batch_limit_s is None and pool.row_limit_s is None
