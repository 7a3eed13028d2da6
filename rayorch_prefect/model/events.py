"""Events into the scheduler and instructions out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rayorch_prefect.model.outcomes import Failure, Gap, ParentOutcome
from rayorch_prefect.model.parts import Parts
from rayorch_prefect.model.reports import OutputReport, Report

# (microbatch, first Entity, end): Entities of one Domain, end exclusive.
EntityRange: TypeAlias = tuple[int, int, int]

# (microbatch, Call, group): the Call is barred under that direct parent.
Bar: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SourceAdmitted:
    """A microbatch of `rows` source rows begins; their values are described by `source`."""

    microbatch: int
    rows: int
    source: OutputReport
    invalid: tuple[tuple[int, str], ...] = ()
    """Rows that do not fit the Plan's use of the source Port, with what they were."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that was asked for is built and idle."""

    worker: int
    pool: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, before it was ready or after. `charge=False`: it was preempted. `node` is
    the one that it died with, "" if it died alone."""

    worker: int
    pool: int
    type: str
    message: str
    charge: bool = True
    node: str = ""


@dataclass(frozen=True, slots=True)
class WorkerWorn:
    """A worker has grown larger than its stage wants; it is to get no further batch."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkersMayHold:
    """From now on a worker of the pool may hold so many batches, the one that it is at included."""

    pool: int
    most: int


@dataclass(frozen=True, slots=True)
class WorkerRemakes:
    """A worker got a batch that makes lost values again, beside the commit rule: it has started."""

    worker: int


@dataclass(frozen=True, slots=True)
class BatchReported:
    """A worker ended a batch, one way or another."""

    batch: int
    worker: int
    report: Report


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """A worker says that it has begun a batch that waited for it."""

    batch: int
    worker: int


@dataclass(frozen=True, slots=True)
class ChildrenArrived:
    """Children of row `row` of a batch that still runs, from ordinal `first` on. Each output
    describes that one row; the batch's report has the rest of them."""

    batch: int
    worker: int
    row: int
    first: int
    outputs: tuple[OutputReport, ...]


@dataclass(frozen=True, slots=True)
class BatchTakenBack:
    """A worker confirms that it has not started a batch, and will not."""

    batch: int
    worker: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A worker has taken longer than its stage's limit: for row `row` of the batch, or for the
    batch (None; the batch has several rows too many for its row limit if it has no own one)."""

    batch: int
    worker: int
    row: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """A paused Call is to try one batch. `given_up`: it has been paused for too long."""

    call: int
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class LingerPassed:
    """A Call has waited for a fuller batch as long as its stage wants."""

    call: int
    turn: int


@dataclass(frozen=True, slots=True)
class RowsReleased:
    """The owner has taken over what it wants of these parents, by index in the microbatch."""

    microbatch: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MicrobatchAbandoned:
    """The owner wants nothing more of this microbatch."""

    microbatch: int


Event: TypeAlias = (
    SourceAdmitted
    | WorkerReady
    | WorkerLost
    | WorkerWorn
    | WorkersMayHold
    | WorkerRemakes
    | BatchReported
    | BatchStarted
    | ChildrenArrived
    | BatchTakenBack
    | DeadlinePassed
    | ProbeDue
    | LingerPassed
    | RowsReleased
    | MicrobatchAbandoned
)


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start one more worker of this pool."""

    pool: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End this worker at once, whatever it does: it is given up, and another takes its place."""

    worker: int


@dataclass(frozen=True, slots=True)
class RetireWorker:
    """Let this worker close and end: it holds nothing, and another was asked for in its place."""

    worker: int


@dataclass(frozen=True, slots=True)
class DispatchBatch:
    """Send `rows` Grains of a Call to a worker that holds one other batch at most.

    `inputs[i]` are the parts of input i, in row order. `cuts` are the rows where another group
    begins: stored chunks are cut there, as values on both sides are released apart. Below the
    root `bars[i]` is the bar that would skip the rows from cut i-1 to cut i. Bars of microbatches
    before `oldest` are of no use any more. Of a Call whose children come in chunks, `taken` says
    how many are there of a row that was tried before: (row, n), n not 0.
    """

    batch: int
    call: int
    worker: int
    ranges: tuple[EntityRange, ...]
    generation: int
    rows: int
    inputs: tuple[Parts, ...]
    cuts: tuple[int, ...]
    bars: tuple[Bar, ...] = ()
    oldest: int = 0
    taken: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TakeBack:
    """Ask a worker not to start a batch that waits for it; another one idles."""

    batch: int
    worker: int


@dataclass(frozen=True, slots=True)
class TellBars:
    """A worker holds rows that have been barred since it got them."""

    worker: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class ForgetBar:
    """A worker skipped rows for a bar that does not hold: its report did not count."""

    worker: int
    bar: Bar


@dataclass(frozen=True, slots=True)
class ParentCompleted:
    """A parent has reached its outcome; `outputs` are the parts of each output, one row each."""

    microbatch: int
    row: int
    outcome: ParentOutcome
    cause: Failure | None
    gaps: tuple[Gap, ...]
    children: int
    attempts: int
    outputs: tuple[Parts, ...]


@dataclass(frozen=True, slots=True)
class ReleaseValues:
    """Nothing will read the `n` stored values from `slot` on any more."""

    slot: int
    n: int


@dataclass(frozen=True, slots=True)
class MicrobatchClosed:
    """All rows of the microbatch are released; nothing of it is kept."""

    microbatch: int


@dataclass(frozen=True, slots=True)
class LingerCall:
    """A Call waits for a fuller batch: `LingerPassed` is wanted after its stage's `linger_s`."""

    call: int
    turn: int


@dataclass(frozen=True, slots=True)
class PauseCall:
    """The backend behind a Call's stage is down, as `message` says: `ProbeDue` is wanted after a
    while, a longer one the more `probes` have failed."""

    call: int
    probes: int
    message: str


@dataclass(frozen=True, slots=True)
class ResumeCall:
    """The backend behind a Call's stage answers again."""

    call: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """The Program cannot go on: workers of a stage die before their first start, or by `backend`
    a service behind it stays down."""

    pool: int
    stage: str
    message: str
    backend: bool = False


Instruction: TypeAlias = (
    StartWorker
    | EndWorker
    | RetireWorker
    | DispatchBatch
    | TakeBack
    | TellBars
    | ForgetBar
    | ParentCompleted
    | ReleaseValues
    | MicrobatchClosed
    | LingerCall
    | PauseCall
    | ResumeCall
    | StopRun
)
