"""The moves of workers, breakers and parents in simulated runs, held against their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import pytest

from rayorch_prefect.model.events import (
    Event,
    Instruction,
    MicrobatchAbandoned,
    ParentCompleted,
    RowsReleased,
    SourceAdmitted,
)
from rayorch_prefect.model.outcomes import OUTCOME_MOVES, Outcome
from rayorch_prefect.scheduler import breakers, grains, parents, workers
from rayorch_prefect.scheduler.breakers import BreakerPhase
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.parents import ParentState
from rayorch_prefect.scheduler.workers import Workers, WorkerState
from tests.scheduler import invariants

_CHANGES = ("ready", "take_off", "wear", "seal", "retire", "land", "lose")

Move = tuple[Enum, Enum]
Seen = dict[str, set[Move]]


def tables() -> dict[str, set[Move]]:
    return {
        "grains": set(grains.MOVES),
        "items": set(OUTCOME_MOVES),
        "workers": set(workers.MOVES),
        "breakers": set(breakers.MOVES),
        "parents": set(parents.MOVES),
    }


@contextmanager
def noted() -> Iterator[Seen]:
    """All moves that are made inside; one that is in no table is an AssertionError."""
    seen: Seen = {name: set() for name in tables()}
    with pytest.MonkeyPatch.context() as patch:
        _note_bytes(patch, invariants.WatchedPhases, Phase, seen["grains"])
        _note_bytes(patch, invariants.WatchedOutcomes, Outcome, seen["items"])
        _note_breakers(patch, seen["breakers"])
        _note_workers(patch, seen["workers"])
        yield seen


def _note_bytes(patch: pytest.MonkeyPatch, cls: Any, states: Any, seen: set[Move]) -> None:
    write = cls.__setitem__

    def noting(self: bytearray, at: Any, value: Any) -> None:
        before = self[at] if isinstance(at, slice) else bytes((self[at],))
        write(self, at, value)
        after = value if isinstance(at, slice) else bytes((value,))
        pairs = set(zip(before, after, strict=True))
        seen.update((states(one), states(other)) for one, other in pairs)

    patch.setattr(cls, "__setitem__", noting)


def _note_breakers(patch: pytest.MonkeyPatch, seen: set[Move]) -> None:
    move = breakers._Breaker.move

    def noting(self: Any, phase: BreakerPhase) -> None:
        seen.add((self.phase, phase))
        move(self, phase)

    patch.setattr(breakers._Breaker, "move", noting)


def _note_workers(patch: pytest.MonkeyPatch, seen: set[Move]) -> None:
    last: dict[tuple[int, int], WorkerState] = {}
    alive: list[Workers] = []  # so that no id is used again

    def look(of: Workers, worker: int) -> None:
        if not any(of is one for one in alive):
            alive.append(of)
        before = last.get((id(of), worker), WorkerState.STARTING)
        after = last[id(of), worker] = of.state(worker)
        if after is not before:
            assert (before, after) in workers.MOVES, f"{before.name} -> {after.name}"
            seen.add((before, after))

    def noting(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(self: Workers, about: Any, *rest: Any) -> Any:
            worker = about.worker if hasattr(about, "worker") else about
            if change.__name__ == "land":
                worker = self.flights[about].worker
            look(self, worker)
            result = change(self, about, *rest)
            look(self, worker)
            return result

        return changed

    for name in _CHANGES:
        patch.setattr(Workers, name, noting(getattr(Workers, name)))


def of_parents(log: list[tuple[Event, list[Instruction]]]) -> set[Move]:
    """The moves of parents that a run's log shows."""
    seen: set[Move] = set()
    known: dict[tuple[int, int], ParentState] = {}
    for event, instructions in log:
        match event:
            case SourceAdmitted():
                known |= {(event.microbatch, row): ParentState.OPEN for row in range(event.rows)}
            case RowsReleased():
                asked = [(event.microbatch, row) for row in event.rows]
                _move(known, asked, ParentState.RELEASED, seen)
            case MicrobatchAbandoned():
                asked = [key for key in known if key[0] == event.microbatch]
                _move(known, asked, ParentState.FORGOTTEN, seen)
            case _:
                pass
        for one in instructions:
            if isinstance(one, ParentCompleted):
                state = ParentState(one.outcome.value)
                _move(known, [(one.microbatch, one.row)], state, seen)
    return seen


def _move(
    known: dict[tuple[int, int], ParentState],
    keys: list[tuple[int, int]],
    state: ParentState,
    seen: set[Move],
) -> None:
    """A parent that was released or forgotten is nothing that anything happens to."""
    for key in keys:
        if known[key] not in (ParentState.RELEASED, ParentState.FORGOTTEN):
            seen.add((known[key], state))
            known[key] = state
