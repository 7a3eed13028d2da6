"""Doomed work: once a failure is sure to reach an output, its parent cannot be COMPLETED any more.

Sure is what follows from the Plan alone (`Wiring.dooms`). What is left of such a parent is
suppressed in every Call, so that it ends at once; its outcome is the same, and outputs of a FAILED
parent are not shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rayorch_prefect.model.events import Bar, TellBars
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.wiring import Wiring
from rayorch_prefect.scheduler.workers import Flight


def unfinished(mb: Microbatch, row: int) -> Iterator[tuple[int, int]]:
    """(Call, Entity) of the Grains of a parent that have not ended."""
    yield from _unfinished(mb, 0, [(row, row + 1)])


def _unfinished(
    mb: Microbatch, domain: int, ranges: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    for call in mb.wiring.calls_on[domain]:
        phase = mb.grains.phase[call]
        for first, end in ranges:
            if not mb.grains.all_in(call, Phase.ENDED, first, end):
                for entity in range(first, end):
                    if phase[entity] != Phase.ENDED:
                        yield call, entity
    for child in mb.wiring.children_of[domain]:
        below = [
            span
            for first, end in ranges
            for entity in range(first, end)
            for span in mb.lineage.spans(child, entity)
        ]
        if below:
            yield from _unfinished(mb, child, below)


def told_of_doom(wiring: Wiring, mb: Microbatch, flights: Iterable[Flight]) -> Iterator[TellBars]:
    """To workers that hold rows of doomed parents: the bars that skip these. (There are none at
    the root.)"""
    told: dict[int, dict[Bar, None]] = {}
    for flight in flights:
        domain = wiring.plan.calls[flight.call].domain
        for number, first, end in flight.ranges if domain else ():
            for group, at, _ in mb.groups(domain, first, end) if number == mb.number else ():
                if mb.root_of(domain, at) in mb.doomed:
                    told.setdefault(flight.worker, {})[number, flight.call, group] = None
    for worker, bars in told.items():
        yield TellBars(worker, tuple(bars))


def told_of_bar(
    wiring: Wiring, mb: Microbatch, bar: Bar, flights: Iterable[Flight]
) -> Iterator[TellBars]:
    """To the workers of these flights that hold rows of the barred group."""
    _, call, group = bar
    spans = mb.lineage.spans(wiring.plan.calls[call].domain, group)
    told: dict[int, None] = {}
    for flight in flights:
        if flight.call == call and any(
            number == mb.number and low < end and first < high
            for number, low, high in flight.ranges
            for first, end in spans
        ):
            told[flight.worker] = None
    for worker in told:
        yield TellBars(worker, (bar,))
