"""Plain lines about a night in progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from prefect.logging import get_run_logger

if TYPE_CHECKING:
    from rayorch_prefect.binding.night import Night

LOG_SECONDS = 10.0

logger = logging.getLogger(__name__)


def progress_line(night: Night) -> str:
    """Sources settled so far by row outcome, grains per stage, or what the start waits for."""
    counts = night.tally()
    parts = [f"{counts.published} of {len(night.sources)} published", f"{counts.failed} failed"]
    parts += [f"{counts.dropped} dropped"] if counts.dropped else []
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    metrics = night.live_metrics()
    if metrics is not None:
        grains = " ".join(f"{call.stage} {call.grains}" for call in metrics.calls)
        parts.append(f"grains: {grains}")
    if night.waiting:
        parts.append(night.waiting)
    return ", ".join(parts)


@asynccontextmanager
async def logged_progress(night: Night) -> AsyncIterator[None]:
    """Write the progress line to the flow run's log from time to time."""
    run_logger = get_run_logger()
    async with repeated(lambda: run_logger.info("%s", progress_line(night)), LOG_SECONDS):
        yield


@asynccontextmanager
async def repeated(act: Callable[[], None], seconds: float) -> AsyncIterator[None]:
    """Call `act` every so many seconds while the body runs, until it raises."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                act()
            except Exception:
                # A closed terminal must not end the night.
                logger.warning("progress is not shown any more", exc_info=True)
                return

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
