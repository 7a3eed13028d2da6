"""A guard that says where a run stands when nothing has moved for a while. It ends nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.workers import Flight

MOST_NAMED = 5
"""How many batches, and sources of a batch, are named; the rest is counted."""


class Standstill:
    """Decides when to say that nothing moves: after `after_s` seconds, then each time that it has
    lasted twice as long. The clock is handed in."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._moved_at = -math.inf
        self._next = math.inf

    def moved(self, now: float) -> None:
        """Something came: a report, a worker, work to do."""
        self._moved_at = now
        self._next = now + self._after_s

    def next(self, at_work: bool) -> float:
        """When `due` has something to say, at the earliest; infinity if nothing is to be done."""
        return self._next if at_work else math.inf

    def due(self, now: float, at_work: bool) -> float | None:
        """For how many seconds nothing has moved, if that is to be said now."""
        if not at_work or now < self._next:
            return None
        lasted = now - self._moved_at
        self._next = now + lasted
        return lasted


def standing(
    scheduler: Scheduler, keys: Mapping[int, Sequence[str]], ages: Mapping[int, float]
) -> str:
    """What each stage waits for: batches at its workers, oldest first, and workers not ready.

    `keys[m]` are the source keys of microbatch m, `ages` are seconds by batch.
    """
    workers = scheduler.workers
    flights = sorted(workers.flights.values(), key=lambda each: -ages.get(each.batch, 0.0))
    parts = [
        _at_worker(scheduler, flight, keys, ages.get(flight.batch, 0.0))
        for flight in flights[:MOST_NAMED]
    ]
    if more := len(flights) - MOST_NAMED:
        parts += [f"{more} more batches"] if more > 0 else []
    parts += [
        f"stage {pool.stage}: {workers.starting[pool.id]} of {pool.replicas} workers not ready"
        for pool in scheduler.plan.pools
        if workers.starting[pool.id]
    ]
    return "; ".join(parts) or "no batch is at a worker"


def _at_worker(
    scheduler: Scheduler, flight: Flight, keys: Mapping[int, Sequence[str]], age: float
) -> str:
    stage = scheduler.plan.calls[flight.call].stage
    sources = _sources(scheduler, flight, keys)
    named = ", ".join(sources[:MOST_NAMED])
    more = f" and {len(sources) - MOST_NAMED} more" if len(sources) > MOST_NAMED else ""
    return (
        f"stage {stage}: worker {flight.worker} has had batch {flight.batch} for {age:.0f} s "
        f"({flight.rows} rows of {named or 'nothing that is still wanted'}{more})"
    )


def _sources(scheduler: Scheduler, flight: Flight, keys: Mapping[int, Sequence[str]]) -> list[str]:
    domain = scheduler.plan.calls[flight.call].domain
    found: dict[str, None] = {}
    for number, first, end in flight.ranges:
        run = scheduler.runs.get(number)
        if run is None or number not in keys:
            continue  # abandoned
        for entity in range(first, end):
            found[keys[number][run.mb.root_of(domain, entity)]] = None
    return list(found)
