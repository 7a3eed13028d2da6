"""What Prefect is shown of a night and its microbatches, while they run and as they end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any

from prefect.artifacts import acreate_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger

from rayorch_prefect.binding.artifacts import MAX_TABLE_ROWS, artifact_key, failure_table
from rayorch_prefect.binding.events import Events
from rayorch_prefect.binding.failed_runs import FailedRuns, ShowFailed
from rayorch_prefect.binding.hooks import Hooks
from rayorch_prefect.binding.listeners import End, Listener, MicrobatchEnd, outcome_counts
from rayorch_prefect.binding.live_progress import END_SECONDS, progress_artifact
from rayorch_prefect.binding.progress import repeated
from rayorch_prefect.binding.report import report_html
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.stage_watch import Look, StageWatch, figures
from rayorch_prefect.binding.stopping import Stop
from rayorch_prefect.binding.summary_page import Summary, summary_markdown
from rayorch_prefect.binding.tallies import Tally, tally
from rayorch_prefect.binding.timeline import Timeline
from rayorch_prefect.binding.timeline_picture import (
    FAILED,
    OTHER,
    PUBLISHED,
    UPLOADS_BEGUN,
    UPLOADS_ENDED,
    timeline_picture,
)
from rayorch_prefect.storage import RowOutcome, report_uri, write_report

if TYPE_CHECKING:
    from rayorch_prefect.binding.microbatch import Microbatch
    from rayorch_prefect.binding.night import Night

LOOK_SECONDS = 1.0
LISTEN_SECONDS = 60.0
"""How long events and hooks that are late are waited for at the end of a night."""

CANCELLED_SECONDS = 1.0
"""How long each page of a cancelled night or microbatch may take to be stored."""

TELL_SECONDS = 30.0
"""How long it may take otherwise: a server that is away must not hold the next microbatch up."""

_SERIES = {RowOutcome.PUBLISHED: PUBLISHED, RowOutcome.FAILED: FAILED}

logger = logging.getLogger(__name__)


class ControlRoom:
    """What is kept of a night to be shown; its length does not grow with the night's."""

    def __init__(self, begun: float) -> None:
        self.timeline = Timeline(begun)
        self.stages = StageWatch(self.timeline)
        self.opened = Look(begun)
        self.ended: dict[str, int] = {}
        self._counting = threading.Lock()
        self._listeners: list[Listener] = []

    def uploads_begun(self, parents: int) -> None:
        """An upload of so many parents was submitted."""
        self.timeline.add(UPLOADS_BEGUN, time.monotonic(), parents)

    def settled(self, row: Row, uploaded: bool) -> None:
        """A parent came to this end, by an upload or before it; called from any thread."""
        now = time.monotonic()
        self.count(row)
        self.timeline.add(_SERIES.get(row.outcome, OTHER), now)
        if uploaded:
            self.timeline.add(UPLOADS_ENDED, now)

    def count(self, row: Row) -> None:
        """Count a parent by its row outcome, for Ray's metrics; called from any thread."""
        name = row.outcome.value
        with self._counting:
            self.ended[name] = self.ended.get(name, 0) + 1

    def tell(self, end: End) -> None:
        """Let the events and the hooks know of it; called from any thread."""
        for listener in self._listeners:
            listener.add(end)

    @asynccontextmanager
    async def listened(self, night: Night) -> AsyncIterator[None]:
        """Events are emitted and hooks called while the body runs, and for a time after it."""
        events, hooks = Events(night.order.parent_events), Hooks(night.hooks)
        self._listeners.append(Listener(events.tell))
        if night.hooks:
            self._listeners.append(Listener(hooks.tell))
        try:
            yield
        finally:
            seconds = CANCELLED_SECONDS if night.stop.reason else LISTEN_SECONDS
            closing = (listener.closed(seconds) for listener in self._listeners)
            untold = sum(await asyncio.gather(*closing))
            _note(untold, events.left_out, hooks.failed)


@asynccontextmanager
async def watched_night(night: Night) -> AsyncIterator[None]:
    """Look at the stages from time to time while the body runs with the Engine open."""
    room = night.control

    def look() -> None:
        room.stages.look(night.live_metrics(), time.monotonic())
        night.show_parents(room.ended)

    for row in night.rows:  # those that are settled before anything runs
        if row is not None:
            room.count(row)
    room.opened = Look(time.monotonic())
    async with room.listened(night):
        async with repeated(look, LOOK_SECONDS):
            yield
        look()


@asynccontextmanager
async def watched(batch: Microbatch, show_failed: ShowFailed) -> AsyncIterator[None]:
    """Show a microbatch in its flow run while the body runs it: its progress, who failed."""
    room, night = batch.night.control, batch.night
    batch.failed_runs = runs = FailedRuns(show_failed)
    batch.looked = room.stages.look(night.live_metrics(), time.monotonic())
    key = artifact_key("progress", night.shelf.program, "microbatch")
    async with (
        progress_artifact(key, lambda: _progress(batch), lambda: _seconds(batch.stop, END_SECONDS)),
        runs.shown(batch.stop),
    ):
        yield


async def tell_microbatch(batch: Microbatch, state: State[Any]) -> None:
    """The end of a microbatch: its summary as a Markdown artifact."""
    night, counts = batch.night, tally(batch.rows)
    look = night.control.stages.look(night.live_metrics(), time.monotonic())
    summary = Summary(
        f"{night.shelf.program}, microbatch {batch.index}",
        state.name or state.type.value,
        counts,
        look.at - batch.looked.at,
        figures(batch.looked, look),
        *night.next_step(counts),
        {"manifest": night.manifest},
    )
    key = artifact_key("summary", night.shelf.program, "microbatch")
    await _in_time(batch.stop, _publish_summary(summary, key))
    night.control.tell(
        MicrobatchEnd(
            night.shelf.program,
            str(night.order.destination),
            batch.index,
            batch.flow_run_id,
            summary.state,
            state.message or "",
            outcome_counts(counts),
        )
    )


async def tell_night(night: Night, state: State[Any]) -> None:
    """The end of a night: its report in the store, its summary as a Markdown artifact."""
    counts = night.tally()
    if unmatched := night.failure_policy.unmatched(counts.by_type):
        get_run_logger().warning("%s", unmatched)
    summary = _of_night(night, counts, state.name or state.type.value)
    await _in_time(night.stop, _store_report(night, summary, state.message or ""))
    key = artifact_key("summary", night.shelf.program)
    await _in_time(night.stop, _publish_summary(summary, key))


def _of_night(night: Night, counts: Tally, state: str) -> Summary:
    room = night.control
    return Summary(
        f"{night.shelf.program}, night",
        state,
        counts,
        time.monotonic() - night.started_at,
        figures(room.opened, room.stages.last) if room.stages.last else (),
        *night.next_step(counts),
        {
            "outputs": str(night.order.destination),
            "manifest": night.manifest,
            "report": report_uri(night.order.destination, night.shelf.program, night.id),
        },
    )


async def _store_report(night: Night, summary: Summary, message: str) -> None:
    uri = await asyncio.to_thread(_write, night, summary, message)
    night.report = uri
    get_run_logger().info("the night's report: %s", uri)


def _write(night: Night, summary: Summary, message: str) -> str:
    rows = [row for row in night.rows if row is not None and row.failure is not None]
    page = report_html(
        summary,
        message,
        failure_table(rows[:MAX_TABLE_ROWS]),
        timeline_picture(
            night.control.timeline,
            {each.stage: each.workers for each in summary.stages},
            len(night.sources),
        ),
        night.order.shown(),
        len(rows),
    )
    return write_report(page, night.order.destination, night.shelf.program, night.id)


async def _publish_summary(summary: Summary, key: str) -> None:
    text = f"{summary.state}: {summary.counts}"
    await acreate_markdown_artifact(summary_markdown(summary), key, text)


async def _in_time(stop: Stop, telling: Awaitable[None]) -> None:
    """Wait for it, briefly once the stop is asked for; the log says where it cannot be."""
    task = asyncio.ensure_future(telling)
    # A timer holds its context until it is due, though it is cancelled: in an empty one it does
    # not keep the flow run of each microbatch that has ended, with all its task runs.
    await asyncio.create_task(_limited(stop, task), context=Context())
    if not task.done():
        task.cancel()
        get_run_logger().warning("not all that is told of the end could be stored in time")
    elif error := task.exception():
        # What it tells is in the state and the manifest: a server or store that refuses it must
        # not change the outcome.
        get_run_logger().warning("what is told of the end was not stored: %s", error)


async def _limited(stop: Stop, task: asyncio.Future[None]) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.or_done(task, grace_s=CANCELLED_SECONDS), TELL_SECONDS)


def _note(untold: int, left_out: int, raised: int) -> None:
    run_logger = get_run_logger()
    if untold:
        run_logger.warning("hooks or events were too slow: %d ends were not told", untold)
    if left_out:
        run_logger.info("%d events of parents were left out, as parent_events says", left_out)
    if raised:
        run_logger.warning("hooks raised %d times; the first are in the log", raised)


def _seconds(stop: Stop, most: float) -> float:
    return CANCELLED_SECONDS / 2 if stop.reason else most


def _progress(batch: Microbatch) -> tuple[float, str]:
    counts = tally(batch.rows)
    total = len(batch.positions)
    return 100.0 * counts.through / total, f"{counts.through} of {total} done: {counts}"
