"""What the driver wants of workers, wherever they are, and what it is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from rayorch_prefect.execution.batch import Fetch
from rayorch_prefect.execution.marker import Place
from rayorch_prefect.execution.messages import BatchMessage, Line, Reply, RowChunk
from rayorch_prefect.model.events import Bar, WorkerLost


@dataclass(frozen=True, slots=True)
class WorkerIsReady:
    """A worker is built."""

    worker: int
    pool: int


@dataclass(frozen=True, slots=True)
class WorkerIsLost:
    """A worker is gone or could not be built."""

    worker: int
    pool: int
    type: str
    message: str
    charge: bool = True
    node: str = ""
    """The node that it died with; "" if it died alone."""
    idle: bool = False
    """Seen by the watch and not by a batch: of no weight while a batch is still to answer."""

    def event(self) -> WorkerLost:
        """What the scheduler is told of it."""
        fate = (self.type, self.message, self.charge, self.node)
        return WorkerLost(self.worker, self.pool, *fate)


@dataclass(frozen=True, slots=True)
class WorkerHasRetired:
    """A worker that was let go has closed, or has had the time to."""

    worker: int


@dataclass(frozen=True, slots=True)
class TakeBackAnswer:
    """Whether a worker gave a batch back before it started."""

    worker: int
    batch: int
    taken: bool


@dataclass(frozen=True, slots=True)
class BatchReply:
    """A batch came back. `large[i]` references large return i."""

    worker: int
    batch: int
    reply: Reply
    large: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ChunksCame:
    """A batch that still runs hands over children. `large` references their large chunks."""

    worker: int
    batch: int
    chunks: tuple[RowChunk, ...]
    large: Any = None


@dataclass(frozen=True, slots=True)
class WorkerIsAt:
    """Where a worker was found, that was asked about a batch."""

    worker: int
    batch: int
    place: Place | None


@dataclass(frozen=True, slots=True)
class LinesCame:
    """What the stage of a pool has logged in a worker, and how many lines were left out by
    batch."""

    pool: int
    lines: tuple[Line, ...]
    left_out: tuple[tuple[int, int], ...]


BackendMessage: TypeAlias = (
    WorkerIsReady
    | WorkerIsLost
    | WorkerHasRetired
    | BatchReply
    | ChunksCame
    | TakeBackAnswer
    | WorkerIsAt
    | LinesCame
)


class Backend(Protocol):
    """Workers, wherever they are. Nothing here may block for long."""

    @property
    def fetch(self) -> Fetch:
        """Reads stored objects."""
        ...

    def start_worker(self, pool: int) -> int:
        """Begin to start a worker; returns its number, never used again."""
        ...

    def send(self, worker: int, batch: int, message: BatchMessage, together: int = 1) -> None:
        """Give a worker a batch; so many may share a call, where there are calls."""
        ...

    def hand_over(self, worker: int) -> None:
        """Have a worker say what came of batches whose call goes on."""
        ...

    def take_back(self, worker: int, batch: int) -> None:
        """Ask a worker not to start a batch; its answer comes as a message."""
        ...

    def tell_bars(self, worker: int, bars: Sequence[Bar]) -> None:
        """Tell a worker of groups that were barred since it got its rows."""
        ...

    def forget_bar(self, worker: int, bar: Bar) -> None:
        """Tell a worker that a bar does not hold."""
        ...

    def look(self, worker: int, batch: int) -> None:
        """Find out which row a worker is at; the answer comes as a message, or not at all."""
        ...

    def retire(self, worker: int) -> None:
        """Let an idle worker close; that it has done so comes as a message."""
        ...

    def discard(self, worker: int) -> None:
        """Make sure that a worker is gone, whatever it does."""
        ...

    def keep(self, data: Any) -> Any:
        """Store a large chunk that came in a reply; returns a reference to a list with it.

        Raises ObjectStoreFull.
        """
        ...

    def unstored(self, returned: Sequence[Any]) -> str | None:
        """Why one of these large returns was not stored; None if all were."""
        ...
