"""`python -m rayorch_prefect.cli.states`: docs/states.md, drawn from the code's own tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from textwrap import fill
from typing import Any

from rayorch_prefect.model.outcomes import OUTCOME_MOVES
from rayorch_prefect.scheduler import breakers, grains, parents, workers
from rayorch_prefect.storage import row_outcomes

Moves = Mapping[tuple[Any, Any], str]

_HEAD = """# States, and what moves them

Drawn by `make states` from the tables that the code is held against: each move in the tests' runs
is one of these, and each of these but for source rows is made there.
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """One kind of thing that has states. `table` says where its moves stand in the code."""

    title: str
    table: str
    text: str
    moves: Moves


MACHINES = (
    Machine(
        "Grains",
        "scheduler/grains.py",
        "A Call at one Entity: what is scheduled, tried again and committed. An attempt that "
        "failed raises the generation, so that its late reports do not count.",
        grains.MOVES,
    ),
    Machine(
        "Items",
        "model/outcomes.py",
        "A Port at one Entity. It settles once, and what depends on it follows.",
        OUTCOME_MOVES,
    ),
    Machine(
        "Parents",
        "scheduler/parents.py",
        "A source row in the scheduler. A microbatch is forgotten when all its parents are "
        "RELEASED, or at once when it is abandoned.",
        parents.MOVES,
    ),
    Machine(
        "Source rows",
        "storage/row_outcomes.py",
        "A source row in one run of the nightly flow. The outcomes of all rows add up to the "
        "sources.",
        row_outcomes.MOVES,
    ),
    Machine(
        "Workers",
        "scheduler/workers.py",
        "Only workers with several rows in flight get to DRAINS and COMPANY: where one of several "
        "rows has killed a worker, they are tried again apart from others. A worker that is WORN "
        "is replaced at once and ends when it holds nothing.",
        workers.MOVES,
    ),
    Machine(
        "Calls and their backend",
        "scheduler/breakers.py",
        "Only stages with `backend_patience_s` leave CLOSED. Paused for longer than that, the run "
        "ends.",
        breakers.MOVES,
    ),
)


def page() -> str:
    """All of docs/states.md."""
    return "\n".join([_HEAD, *(_section(machine) for machine in MACHINES)])


def _section(machine: Machine) -> str:
    drawn = "\n".join(diagram(machine.moves))
    text = fill(f"{machine.text} (`rayorch_prefect/{machine.table}`)", 120)
    return f"## {machine.title}\n{text}\n\n```mermaid\n{drawn}\n```\n"


def diagram(moves: Moves) -> Iterator[str]:
    """The lines of a Mermaid state diagram; states that nothing leads to begin it, and those that
    nothing leads from end it."""
    before = dict.fromkeys(one for one, _ in moves)
    after = dict.fromkeys(other for _, other in moves)
    yield "stateDiagram-v2"
    first = [one for one in before if one not in after] or list(before)[:1]
    yield from (f"    [*] --> {_name(one)}" for one in first)
    for (one, other), why in moves.items():
        yield f"    {_name(one)} --> {_name(other)}: {why}"
    yield from (f"    {_name(one)} --> [*]" for one in after if one not in before)


def _name(state: Enum) -> str:
    return state.name


if __name__ == "__main__":
    print(page(), end="")
