"""The tables of states are what happens, and docs/states.md is drawn from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect.cli import states
from rayorch_prefect.model.events import MicrobatchAbandoned, ProbeDue, WorkerLost, WorkerWorn
from rayorch_prefect.model.reports import RowFailure
from rayorch_prefect.program import F
from rayorch_prefect.scheduler import breakers, workers
from rayorch_prefect.scheduler.breakers import BreakerPhase
from rayorch_prefect.scheduler.parents import ParentState, state_of
from rayorch_prefect.scheduler.workers import WorkerState
from tests.scheduler import moves
from tests.scheduler.recipes import SeededBehaviour, build, numbered_recipe
from tests.scheduler.scenes import ENCRYPTED, Scene, named, pages_read
from tests.scheduler.simulation import Simulation

MOST_EXAMPLES = 200
DOCS = Path(__file__).parents[2] / "docs"


def simulated(number: int, seen: moves.Seen) -> None:
    recipe = numbered_recipe(number)
    plan = build(recipe)
    if plan is not None:
        does = SeededBehaviour(plan, recipe.seed, recipe.weights)
        run = Simulation(
            plan, does, seed=recipe.seed, chaos=recipe.chaos, microbatches=recipe.microbatches
        )
        run.run()
        seen["parents"] |= moves.of_parents(run.log)


# -- moves that few random runs make --------------------------------------------------------------


def paused() -> Scene:
    """The backend was down for the first batch, and another one is out."""
    scene = Scene(pages_read(batch_size=4, rowwise=True, backend_patience_s=60))
    scene.admit(1, [8])
    down = RowFailure(None, "ConnectionError", "refused", backend=True)
    scene.give(failures=dict.fromkeys(range(4), down))
    return scene


def a_later_batch_shows_the_backend_up() -> Scene:
    scene = paused()
    scene.give()
    return scene


def a_later_batch_shows_it_before_the_probe() -> Scene:
    scene = paused()
    scene.tell(ProbeDue(0))
    scene.give()
    return scene


def draining() -> Scene:
    """A worn worker dies with its rows, and its replacement is busy."""
    scene = Scene(pages_read("skip", concurrency=4))
    scene.admit(1, [9])
    scene.tell(WorkerWorn(1))
    scene.worker()
    scene.tell(WorkerLost(1, 0, "WorkerDied", "killed"))
    assert scene.scheduler.workers.state(2) is WorkerState.DRAINS
    scene.sent = [order for order in scene.sent if order.worker == 2]
    return scene


def a_draining_worker_is_empty_at_last() -> Scene:
    scene = draining()
    for _ in list(scene.sent):
        scene.give()
    return scene


def a_worker_wears_out_among_suspects() -> Scene:
    scene = a_draining_worker_is_empty_at_last()
    assert scene.scheduler.workers.state(2) is WorkerState.COMPANY
    scene.tell(WorkerWorn(2))
    return scene


def a_draining_worker_wears_out() -> Scene:
    scene = draining()
    scene.tell(WorkerWorn(2))
    return scene


def a_draining_worker_dies() -> Scene:
    scene = draining()
    scene.tell(WorkerLost(2, 0, "WorkerDied", "killed"))
    return scene


def _left(ending: Callable[[Scene], object]) -> Scene:
    """A parent that has ended, and whose microbatch is abandoned before it is taken over."""
    mask = named("Mask", outputs=1)
    scene = Scene(lambda source: F.filter(source, mask(source)))
    scene.admit(1)
    ending(scene)
    mb = scene.scheduler.runs[0].mb
    assert state_of(scene.scheduler.wiring, mb, 0).value == scene.outcome()
    scene.tell(MicrobatchAbandoned(0))
    return scene


def a_completed_parent_is_forgotten() -> Scene:
    return _left(lambda scene: scene.give(masks=[True]))


def a_dropped_parent_is_forgotten() -> Scene:
    return _left(lambda scene: scene.give(masks=[False]))


def a_failed_parent_is_forgotten() -> Scene:
    return _left(lambda scene: scene.give(failures={0: ENCRYPTED}, masks=[False]))


def a_parent_that_has_not_ended_is_forgotten() -> Scene:
    scene = Scene(pages_read())
    scene.admit(1, [2])
    assert state_of(scene.scheduler.wiring, scene.scheduler.runs[0].mb, 0) is ParentState.OPEN
    scene.tell(MicrobatchAbandoned(0))
    return scene


BY_HAND = (
    a_later_batch_shows_the_backend_up,
    a_later_batch_shows_it_before_the_probe,
    a_draining_worker_is_empty_at_last,
    a_worker_wears_out_among_suspects,
    a_draining_worker_wears_out,
    a_draining_worker_dies,
    a_completed_parent_is_forgotten,
    a_dropped_parent_is_forgotten,
    a_failed_parent_is_forgotten,
    a_parent_that_has_not_ended_is_forgotten,
)


def test_each_move_is_in_its_table_and_each_of_a_table_is_made() -> None:
    with moves.noted() as seen:
        for made in BY_HAND:
            seen["parents"] |= moves.of_parents(made().log)
        for number in range(MOST_EXAMPLES):
            simulated(number, seen)
            for name, table in moves.tables().items():
                assert seen[name] <= table, f"{name}: {seen[name] - table}"
            if seen == moves.tables():
                return
    left = {name: table - seen[name] for name, table in moves.tables().items()}
    raise AssertionError(f"never made: {left}")


@pytest.mark.parametrize(
    ("module", "move"),
    [
        (workers, (WorkerState.IDLE, WorkerState.HOLDS)),
        (breakers, (BreakerPhase.PAUSED, BreakerPhase.CLOSED)),
    ],
)
def test_a_move_that_no_table_names_is_noticed(
    module: Any, move: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {one: why for one, why in module.MOVES.items() if one != move}
    monkeypatch.setattr(module, "MOVES", left)
    with pytest.raises(AssertionError, match=" -> "):
        test_each_move_is_in_its_table_and_each_of_a_table_is_made()


def test_the_committed_page_is_what_the_tables_say() -> None:
    assert (DOCS / "states.md").read_text() == states.page(), "run `make states`"


def test_a_diagram_begins_and_ends_where_nothing_leads_to_or_from() -> None:
    drawn = list(states.diagram(breakers.MOVES))
    assert drawn[:2] == ["stateDiagram-v2", "    [*] --> CLOSED"]
    assert drawn[2] == (
        "    CLOSED --> PAUSED: enough backend failures in a row, and not of one Grain alone"
    )
    drawn = list(states.diagram(workers.MOVES))
    assert drawn[1] == "    [*] --> STARTING"
    assert drawn[-1] == "    GONE --> [*]"
    assert not any(";" in line or line.count(": ") > 1 for line in drawn)
