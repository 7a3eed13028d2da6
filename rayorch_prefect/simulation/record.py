"""What happened in a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rayorch_prefect.simulation.batch import Batch
from rayorch_prefect.simulation.chain import Stage


class Work(NamedTuple):
    """A worker (by its lane) was busy with a batch; `rows` were computed by `calls`."""

    lane: int
    begun: float
    ended: float
    rows: int
    calls: int


class Record:
    """By stage what its workers did, and when each document ended."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.work: list[list[Work]] = [[] for _ in stages]
        self.lost = [0] * len(stages)  # rows computed of documents that fail
        self.ended: dict[int, float] = {}
        self.completed: set[int] = set()

    def batch(self, stage: int, lane: int, batch: Batch) -> None:
        """A batch is done."""
        self.lost[stage] += batch.lost
        if batch.calls:
            self.work[stage].append(Work(lane, batch.begun, batch.end, batch.rows, batch.calls))

    def parent(self, document: int, now: float, completed: bool) -> None:
        """A document has ended."""
        self.ended[document] = now
        if completed:
            self.completed.add(document)

    def joined(self, later: Record, documents: Sequence[int]) -> Record:
        """This run, and a later one of these of its documents."""
        whole = Record((*self.stages, *later.stages))
        whole.work = [*self.work, *later.work]
        whole.lost = [*self.lost, *later.lost]
        whole.ended = {**self.ended, **{documents[i]: at for i, at in later.ended.items()}}
        whole.completed = {documents[i] for i in later.completed}
        return whole
