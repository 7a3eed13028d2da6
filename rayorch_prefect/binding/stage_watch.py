"""What the stages do meanwhile, looked at from time to time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rayorch_prefect.binding.timeline import Timeline
from rayorch_prefect.execution.metrics import CallMetrics, EngineMetrics


@dataclass(frozen=True, slots=True)
class Look:
    """The Calls' counters at the moment `at` (s); `waited[i]` sums the rows that were ready for
    Call i over all `looks` so far."""

    at: float
    calls: tuple[CallMetrics, ...] = ()
    waited: tuple[int, ...] = ()
    looks: int = 0


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One Call between two Looks.

    `fill` is rows sent a batch over the batch size, `busy_share` the part of its workers' time
    that was spent inside the stage, `waiting` how many rows were ready on average.
    """

    stage: str
    domain: str
    workers: int
    batches: int
    rows: int
    fill: float
    busy_share: float
    waiting: float
    failed: int


def busy_series(stage: str) -> str:
    """The timeline's series of the seconds that a stage's workers were inside it."""
    return f"busy {stage}"


class StageWatch:
    """Looks at the Engine's counters and keeps what the stages did in the timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.last: Look | None = None
        self._timeline = timeline

    def look(self, metrics: EngineMetrics | None, at: float) -> Look:
        """Take the counters in; the Look that includes them."""
        self._timeline.reach(at)
        if metrics is None:
            return self.last or Look(at)
        before = self.last
        # What came back since the last look did so between the two.
        between = (before.at + at) / 2 if before else at
        waited = before.waited if before else (0,) * len(metrics.calls)
        for i, call in enumerate(metrics.calls):
            busy = call.busy_s - (before.calls[i].busy_s if before else 0.0)
            if busy or call.in_flight:
                self._timeline.add(busy_series(call.stage), between, busy)
        self.last = Look(
            at,
            metrics.calls,
            tuple(so_far + call.ready for so_far, call in zip(waited, metrics.calls, strict=True)),
            before.looks + 1 if before else 1,
        )
        return self.last


def figures(before: Look | None, after: Look) -> tuple[StageFigures, ...]:
    """What each Call did between the Looks, or until `after` if there is no earlier one."""
    earlier = before if before and before.calls else None
    seconds = after.at - before.at if before else 0.0
    looks = after.looks - (earlier.looks if earlier else 0)
    return tuple(
        _figures(
            call,
            earlier.calls[i] if earlier else None,
            seconds,
            (after.waited[i] - (earlier.waited[i] if earlier else 0)) / looks if looks else 0.0,
        )
        for i, call in enumerate(after.calls)
    )


def _figures(
    now: CallMetrics, before: CallMetrics | None, seconds: float, waiting: float
) -> StageFigures:
    batches = now.batches - (before.batches if before else 0)
    rows = now.rows - (before.rows if before else 0)
    busy = now.busy_s - (before.busy_s if before else 0.0)
    worked = now.workers * seconds
    return StageFigures(
        stage=now.stage,
        domain=now.domain,
        workers=now.workers,
        batches=batches,
        rows=rows,
        fill=rows / (batches * now.batch_size) if batches else 0.0,
        busy_share=min(1.0, busy / worked) if worked > 0 else 0.0,
        waiting=waiting,
        failed=now.failed - (before.failed if before else 0),
    )


def busiest(each: Sequence[StageFigures]) -> StageFigures | None:
    """The stage that held the others up, by its busy share; None if none was busy."""
    found = max(each, key=lambda figures: figures.busy_share, default=None)
    return found if found is not None and found.busy_share > 0 else None
