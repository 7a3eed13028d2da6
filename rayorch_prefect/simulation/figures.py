"""The figures of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch_prefect.simulation.load import Load
from rayorch_prefect.simulation.record import Record, Work


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Of one stage. `fill` is rows a call over the batch size, `utilisation` the busy share of its
    workers' time over the whole run; `begun_s` and `ended_s` are its first and last work."""

    stage: str
    workers: int
    calls: int
    rows: int
    fill: float
    busy_s: float
    utilisation: float
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; seconds from its start. `tail_s` is from the last page read to the last document
    out, `suppressed` counts pages of poisoned documents that were never computed, and
    `suppressed_share` is of all such pages but the poisonous ones themselves."""

    shape: str
    policy: str
    wall_s: float
    first_parent_s: float
    last_page_s: float
    tail_s: float
    documents: int
    pages: int
    completed: int
    failed: int
    suppressed: int
    suppressed_share: float
    stages: tuple[StageFigures, ...]

    @property
    def busiest(self) -> StageFigures:
        """The stage whose workers are busy for the greatest share."""
        return max(self.stages, key=lambda stage: stage.utilisation)


def figures_of(
    record: Record, load: Load, last_on_pages: str, spoiled: str, shape: str, policy: str
) -> Figures:
    """What a record comes to; `spoiled` is the stage where pages fail."""
    wall = max(record.ended.values())
    done = [record.ended[document] for document in record.completed]
    stages = tuple(
        _stage(stage.name, stage.workers, stage.batch, work, wall)
        for stage, work in zip(record.stages, record.work, strict=True)
    )
    by_name = {stage.stage: stage for stage in stages}
    last_page = by_name[last_on_pages].ended_s
    suppressed = 0
    if load.poison:
        place = [stage.name for stage in record.stages].index(spoiled)
        suppressed = load.siblings + len(load.poison) - record.lost[place]
    return Figures(
        shape=shape,
        policy=policy,
        wall_s=wall,
        first_parent_s=min(done, default=wall),
        last_page_s=last_page,
        tail_s=max(0.0, wall - last_page),
        documents=len(load.counts),
        pages=load.pages,
        completed=len(done),
        failed=len(load.counts) - len(done),
        suppressed=suppressed,
        suppressed_share=suppressed / load.siblings if load.siblings else 0.0,
        stages=stages,
    )


def _stage(name: str, workers: int, batch: int, work: list[Work], wall: float) -> StageFigures:
    calls, rows = sum(one.calls for one in work), sum(one.rows for one in work)
    # What fails after its document's end is of no more use, and not waited for.
    busy = sum(max(0.0, min(wall, one.ended) - one.begun) for one in work)
    return StageFigures(
        stage=name,
        workers=workers,
        calls=calls,
        rows=rows,
        fill=rows / (calls * batch) if calls else 0.0,
        busy_s=busy,
        utilisation=busy / (workers * wall) if wall else 0.0,
        begun_s=min((one.begun for one in work), default=0.0),
        ended_s=max((one.ended for one in work), default=0.0),
    )
