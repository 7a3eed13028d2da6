"""The progress of a night: live on a terminal, a plain line from time to time elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.progress import progress_line, repeated
from rayorch_prefect.binding.tallies import Tally

LINE_SECONDS = 5.0
REFRESH_SECONDS = 1.0
_WINDOW_SECONDS = 15.0
_BAR_WIDTH = 40


@asynccontextmanager
async def shown_progress(nights: Sequence[Night]) -> AsyncIterator[None]:
    """Show the progress of the nights while the body runs, in the way that standard output takes.

    A display that cannot be drawn any more does not end the body.
    """
    if not sys.stdout.isatty():
        async with repeated(lambda: _print_lines(nights), LINE_SECONDS):
            yield
        return
    display = Display(nights)
    live = Live(console=Console(), auto_refresh=False, get_renderable=display.render)
    live.start()
    try:
        async with repeated(live.refresh, REFRESH_SECONDS):
            yield
    finally:
        with suppress(OSError, ValueError):  # the terminal is gone
            live.stop()


def _print_lines(nights: Sequence[Night]) -> None:
    for night in nights:
        print(progress_line(night), flush=True)


class Pace:
    """How fast a night goes, from counts taken at times in seconds."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._published: deque[tuple[float, int]] = deque()

    def take(self, now: float, counts: Tally) -> None:
        """Note the counts at this time; times only grow."""
        if self._first is None:
            self._first = (now, counts.through)
        self._published.append((now, counts.published))
        while now - self._published[0][0] > _WINDOW_SECONDS:
            self._published.popleft()

    def uploads_per_second(self) -> float | None:
        """Over the last seconds; None before two counts were taken."""
        (began, before), (now, published) = self._published[0], self._published[-1]
        return (published - before) / (now - began) if now > began else None

    def seconds_left(self, open_rows: int, settled: int) -> float | None:
        """Until the open rows have settled as fast as those before; None while none has."""
        if self._first is None:
            return None
        began, before = self._first
        if settled <= before:
            return None
        return open_rows * (self._published[-1][0] - began) / (settled - before)


class Display:
    """What stands on the terminal for the latest of the nights."""

    def __init__(self, nights: Sequence[Night]) -> None:
        self._nights = nights
        self._pace = Pace()

    def render(self) -> RenderableType:
        """Documents published and failed, uploads a second, time left, grains per stage."""
        if not self._nights:
            return "starting"
        night = self._nights[-1]
        if not night.planned:
            return f"looking for sources under {night.order.source}"
        return Group(self._documents(night), _stages(night))

    def _documents(self, night: Night) -> RenderableType:
        counts, total = night.tally(), len(night.sources)
        self._pace.take(time.monotonic(), counts)
        left = self._pace.seconds_left(total - counts.through, counts.through)
        rate = self._pace.uploads_per_second()
        table = Table.grid(padding=(0, 2))
        table.add_row(
            ProgressBar(total=max(1, total), completed=counts.through, width=_BAR_WIDTH),
            f"{counts.through} of {total} sources",
            f"{counts.published} published",
            f"{counts.failed} failed",
            *([f"{counts.skipped} skipped"] if counts.skipped else []),
            "- uploads/s" if rate is None else f"{rate:.1f} uploads/s",
            "time left -" if left is None else f"time left {_duration(left)}",
        )
        return table


def _stages(night: Night) -> RenderableType:
    if night.waiting:
        return Text(night.waiting)
    metrics = night.live_metrics()
    if metrics is None:
        return "starting workers" if night.microbatches else "nothing to run"
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("stage")
    for name in ("done", "running", "ready", "failed"):
        table.add_column(name, justify="right")
    for call in metrics.calls:
        numbers = (call.grains, call.in_flight, call.ready, call.failed)
        table.add_row(f"{call.stage} ({call.domain})", *map(str, numbers))
    return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
