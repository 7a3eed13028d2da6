"""The state of every Grain: one byte each; more only for those that were tried again.

WAITING -> READY -> IN_FLIGHT -> ENDED
WAITING -> ENDED                an input is not PRESENT, or its group is barred
READY   -> ENDED                its group is barred
IN_FLIGHT -> READY              the attempt failed; the generation is raised
IN_FLIGHT -> ENDED              committed, failed, or barred (its row is dropped later)
"""

from __future__ import annotations

from enum import IntEnum

from rayorch_prefect.scheduler.items import Cause


class Phase(IntEnum):
    """Where a Grain is on its way. The numbers are part of the layout."""

    WAITING = 0
    READY = 1
    IN_FLIGHT = 2
    ENDED = 3


LEGAL = {
    Phase.WAITING: frozenset((Phase.READY, Phase.ENDED)),
    Phase.READY: frozenset((Phase.IN_FLIGHT, Phase.ENDED)),
    Phase.IN_FLIGHT: frozenset((Phase.READY, Phase.ENDED)),
    Phase.ENDED: frozenset[Phase](),
}


class Grains:
    """Owner of the Grains of all Calls in one microbatch."""

    def __init__(self, calls: int) -> None:
        self.phase = [bytearray() for _ in range(calls)]
        self.generation: list[dict[int, int]] = [{} for _ in range(calls)]
        self.attempts: list[dict[int, int]] = [{} for _ in range(calls)]
        # Of a Call: why it is barred under a group.
        self.barred: list[dict[int, Cause]] = [{} for _ in range(calls)]

    def all_in(self, call: int, phase: Phase, first: int, end: int) -> bool:
        """Whether the Grains at Entities first..end-1 are all in `phase`."""
        return self.phase[call].count(phase, first, end) == end - first

    def move(self, call: int, first: int, end: int, phase: Phase) -> None:
        """Put a range of Grains into `phase`."""
        self.phase[call][first:end] = bytes((phase,)) * (end - first)

    def raise_generation(self, call: int, entity: int) -> None:
        """The Grain is tried anew: reports of earlier tries no longer count."""
        generations = self.generation[call]
        generations[entity] = generations.get(entity, 0) + 1

    def charge(self, call: int, entity: int) -> int:
        """Count an attempt against the Grain's budget; returns the attempts so far."""
        attempts = self.attempts[call]
        attempts[entity] = attempts.get(entity, 0) + 1
        return attempts[entity]
