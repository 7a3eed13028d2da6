"""The state of every Grain: one byte each; more only for those that were tried again."""

from __future__ import annotations

from enum import IntEnum

from rayorch_prefect.scheduler.items import Cause


class Phase(IntEnum):
    """Where a Grain is on its way. The numbers are part of the layout."""

    WAITING = 0
    READY = 1
    IN_FLIGHT = 2
    ENDED = 3


MOVES = {
    (Phase.WAITING, Phase.READY): "all inputs are PRESENT",
    (Phase.WAITING, Phase.ENDED): "an input is not PRESENT, or nothing needs it any more",
    (Phase.READY, Phase.IN_FLIGHT): "sent to a worker in a batch",
    (Phase.READY, Phase.ENDED): "its group is barred, or its parent is doomed",
    (Phase.IN_FLIGHT, Phase.READY): "its attempt failed (the generation is raised), or its batch "
    "was taken back or its row skipped",
    (
        Phase.IN_FLIGHT,
        Phase.ENDED,
    ): "committed, failed for good, barred or doomed (its row is dropped later)",
}
"""What moves a Grain from one phase to another; nothing else does."""


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
