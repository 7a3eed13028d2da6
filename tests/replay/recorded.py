"""Recordings to replay: of simulated runs, and of real ones in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rayorch_prefect import run_local
from rayorch_prefect.model.events import Event
from rayorch_prefect.replay.frames import read_frames
from rayorch_prefect.replay.recorder import Recorder
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.replay.replaying import Replay
from rayorch_prefect.scheduler.core import Scheduler
from tests.execution.programs import everything
from tests.scheduler.recipes import SeededBehaviour, build, numbered_recipe
from tests.scheduler.simulation import Simulation

ROWS = [{"id": chr(97 + i), "n": i % 7} for i in range(20)]


def simulated(number: int) -> Simulation | None:
    """A numbered example that has run to its end; None if its Program is refused."""
    recipe = numbered_recipe(number)
    plan = build(recipe)
    if plan is None:
        return None
    does = SeededBehaviour(plan, recipe.seed, recipe.weights)
    run = Simulation(
        plan, does, seed=recipe.seed, chaos=recipe.chaos, microbatches=recipe.microbatches
    )
    run.run()
    return run


def write(run: Simulation, path: Path) -> Scheduler:
    """Record a simulated run's events as a Driver would have; the Scheduler that was given them.

    The simulation's own one has been looked at, which drops barred work from its queues.
    """
    scheduler = Scheduler.with_options(run.plan, run.scheduler.options)
    recorder = Recorder(path)
    recorder.begin(run.plan, scheduler.options)
    recorder.given(None)
    recorder.told(scheduler.start())
    for event, instructions in run.log:
        recorder.given(event)
        answer = scheduler.handle(event)
        assert answer == instructions
        recorder.told(answer)
    recorder.close(scheduler)
    return scheduler


def locally(path: Path, seed: int = 3, **options: Any) -> int:
    """A run in this process with everything in it, recorded; how many parents it had."""
    return len(list(run_local(everything(4), ROWS, seed=seed, losses=0.05, record=path, **options)))


def replayed(path: Path) -> Replay:
    """A whole replay that gave what was recorded."""
    replay = Replay(Recording(path))
    replay.run(check=True)
    return replay


def events_of(path: Path) -> list[Event]:
    """All events of a recording."""
    return [step.event for step in Recording(path).steps() if step.event is not None]


def text_of(path: Path) -> str:
    """All that is written in a recording."""
    return "\n".join(json.dumps(json.loads(frame)) for frame in read_frames(path))
