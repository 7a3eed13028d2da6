"""What is told of the ends of parents and microbatches to others, beside the night's own work."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeAlias

from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.storage import RowOutcome


@dataclass(frozen=True, slots=True)
class ParentEnd:
    """A source that was published, or has failed: `outcome` says which.

    `outputs` are the URIs of what was stored, `missing` its gaps as ordinal paths. `kind`, `type`,
    `stage`, `child` (the ordinal below the parent, None if it is the parent itself), `cause` and
    `attempts` are the failure's, in plain text without secrets.
    """

    program: str
    destination: str
    key: str
    uri: str
    outcome: RowOutcome
    outputs: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    kind: str = ""
    type: str = ""
    stage: str = ""
    child: int | None = None
    cause: str = ""
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class MicrobatchEnd:
    """A microbatch that has ended: the name of its state, and its sources by row outcome."""

    program: str
    destination: str
    index: int
    flow_run_id: str
    state: str
    message: str
    counts: Mapping[str, int]


End: TypeAlias = ParentEnd | MicrobatchEnd


def parent_end(program: str, destination: str, row: Row) -> ParentEnd:
    """What is told of a published or failed row."""
    failure = row.failure
    end = ParentEnd(
        program,
        destination,
        row.source.key,
        row.source.uri,
        row.outcome,
        tuple(artifact.uri for artifact in row.artifacts),
        row.missing,
    )
    if failure is None:
        return end
    of_failure = (failure.kind.value, failure.type, failure.stage, failure.child, failure.message)
    told = (program, destination, row.source.key, row.source.uri, row.outcome, (), ())
    return ParentEnd(*told, *of_failure, failure.attempts)


def outcome_counts(counts: Tally) -> dict[str, int]:
    """Sources by row outcome."""
    return {
        "published": counts.published,
        "failed": counts.failed,
        "dropped": counts.dropped,
        "skipped": counts.skipped,
        "not_processed": counts.not_processed,
    }


class Listener:
    """A thread that `tell`s of one end after the other, in the context in which it was made.

    Whatever it takes, nobody waits for it before `closed`.
    """

    def __init__(self, tell: Callable[[End], object]) -> None:
        self._tell = tell
        self._ends: queue.SimpleQueue[End | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        # A daemon: one that hangs must not keep the process.
        run = copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True)
        self._thread.start()

    def add(self, end: End) -> None:
        """Tell of it soon; called from any thread."""
        self._ends.put(end)

    async def closed(self, seconds: float) -> int:
        """Wait for all that was added, for so long; how many ends are left untold."""
        self._ends.put(None)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
            return 0
        # The mark of the end counts for the one that it is at.
        return max(1, self._ends.qsize())

    def _run(self) -> None:
        while (end := self._ends.get()) is not None:
            self._tell(end)
        with suppress(RuntimeError):  # the loop may be closed
            self._loop.call_soon_threadsafe(self._over.set)
