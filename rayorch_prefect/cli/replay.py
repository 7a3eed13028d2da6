"""`rayorch-prefect replay`: a recorded run again, step by step, and what became of a source row."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime

from rayorch_prefect._version import VERSION
from rayorch_prefect.errors import UsageError
from rayorch_prefect.replay.recording import CUT_OFF, Recording
from rayorch_prefect.replay.replaying import Replay, ReplayDiffers

_MOST_SHOWN = 20


def replay(asked: argparse.Namespace) -> int:
    """Replay what the arguments ask for; the exit status.

    Raises UsageError for a file, key or path that is not there; ReplayDiffers with `--check`.
    """
    recording = Recording(asked.file)
    story: list[str] = asked.story or []
    if len(story) > 2:
        raise UsageError(f"--story is {' '.join(story)!r}; expected a key and perhaps a path")
    again = Replay(recording)
    try:
        again.run(asked.until, check=asked.check)
    except ReplayDiffers as difference:
        if recording.made_by == VERSION:
            raise
        raise ReplayDiffers(
            f"{difference} (recorded by rayorch-prefect {recording.made_by}, replayed by {VERSION})"
        ) from None
    if story:
        print(again.story(story[0], "".join(story[1:])))
        return 0
    for line in _summary(again, asked):
        print(line)
    return 0


def _summary(again: Replay, asked: argparse.Namespace) -> Iterator[str]:
    recording, scheduler = again.recording, again.scheduler
    plan, began = recording.plan, datetime.fromtimestamp(recording.began)
    yield f"recording      {recording.path}"
    yield (
        f"run            {plan.name} {plan.version}, began {began:%Y-%m-%d %H:%M:%S}, by "
        f"rayorch-prefect {recording.made_by}, policy {recording.options['policy']}"
    )
    lasted = f" in {again.times[-1]:.3f} s" if again.times else ""
    yield f"steps          {again.number}{lasted}; {_ended(again, asked.until)}"
    rows = sum(map(len, recording.keys.values()))
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(again.outcomes.items()))
    yield f"parents        {rows} in {len(recording.keys)} microbatches: {outcomes or 'none ended'}"
    yield from _calls(again)
    counts = scheduler.counts
    yield (
        f"counts         {counts.retries} retries, {counts.workers_lost} workers lost, "
        f"{counts.stale_reports} stale reports, {counts.dropped_rows} rows dropped, "
        f"{counts.deadlines_passed} deadlines passed"
    )
    yield from _at_workers(again)
    for refused in again.refused:
        yield f"refused        step {refused.step.number}: {refused.step.event}: {refused.error!r}"
    yield f"state          {again.state()}"
    if asked.check:
        yield "check          every answer is the recorded one" + (
            ", and so is the state" if recording.state and asked.until is None else ""
        )


def _ended(again: Replay, until: int | None) -> str:
    if until is not None and until <= again.number:
        return f"stopped before step {until}"
    beyond = "" if until is None else f", before step {until}"
    if again.recording.end == CUT_OFF:
        return f"the recording is cut off there{beyond}: its run was killed, or its file damaged"
    return f"the recording ends there{beyond} ({again.recording.end})"


def _calls(again: Replay) -> Iterator[str]:
    for call in again.recording.plan.calls:
        counts = again.scheduler.counts.calls[call.id]
        open_ = f", {counts.ready} ready, {counts.in_flight} in flight"
        yield (
            f"Call {call.id:<10d}{call.stage}: {counts.grains} committed, {counts.failed} failed, "
            f"{counts.suppressed} suppressed in {counts.batches} batches"
            f"{open_ if counts.ready or counts.in_flight else ''}"
        )


def _at_workers(again: Replay) -> Iterator[str]:
    flights = list(again.scheduler.workers.flights.values())
    for flight in flights[:_MOST_SHOWN]:
        stage = again.recording.plan.calls[flight.call].stage
        yield f"at worker {flight.worker:<5d}batch {flight.batch} of {stage}, {flight.rows} rows"
    if len(flights) > _MOST_SHOWN:
        yield f"               and {len(flights) - _MOST_SHOWN} more batches"
