"""The compiled Program: an immutable Plan of Domains, Ports, Calls and pools.

Everything is numbered densely from 0 in topological order, so that the scheduler can keep its
state in arrays: `plan.ports[7].id == 7`. Domain 0 is the root; Port 0 is the source Port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from rayorch_prefect.program.targets import StageTarget


class OnFailure(StrEnum):
    """What a reduce does with failed members."""

    FAIL = "fail"
    SKIP = "skip"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Where:
    """The user's file and line of a declaration."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class SourceOp:
    """The source rows of the microbatch."""


@dataclass(frozen=True, slots=True)
class CallOutputOp:
    """Output `index` of a Call."""

    call: int
    index: int


@dataclass(frozen=True, slots=True)
class ExpandOp:
    """The elements of the list-valued `source` Port, one Domain below it."""

    source: int


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """List `index` of a reduce: the members of one direct parent, in order."""

    reduce: int
    index: int


@dataclass(frozen=True, slots=True)
class FilterOp:
    """`source` where `mask` is true, else DROPPED."""

    source: int
    mask: int


@dataclass(frozen=True, slots=True)
class CoalesceOp:
    """The first PRESENT of `sources`."""

    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BroadcastOp:
    """The value of `source`, which is on the direct parent Domain, at each of its children.

    A broadcast over several levels is lowered to one such Port a level.
    """

    source: int


Op: TypeAlias = SourceOp | CallOutputOp | ExpandOp | ReduceOp | FilterOp | CoalesceOp | BroadcastOp


@dataclass(frozen=True, slots=True)
class Domain:
    """A level. `parent` is None for the root. `expands` are the Ports that `F.expand` made here
    (several for `F.expand_aligned`); the Domain's members are known when their sources settle."""

    id: int
    name: str
    parent: int | None
    depth: int
    expands: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Port:
    """A value slot on a Domain. `name` is for people: `Read`, `expand page`, `reduce Read`."""

    id: int
    domain: int
    op: Op
    name: str
    where: Where


@dataclass(frozen=True, slots=True)
class Reduce:
    """One `F.reduce` (one source and result) or `F.reduce_aligned` (several).

    `sources` are Ports on one child Domain, `results` Ports on its parent Domain.
    `max_missing` goes with SKIP: a count (int), a share of the members (float), or no limit.
    """

    id: int
    domain: int
    child_domain: int
    sources: tuple[int, ...]
    results: tuple[int, ...]
    on_failure: OnFailure
    max_missing: int | float | None
    where: Where


@dataclass(frozen=True, slots=True)
class Call:
    """One configured use of a stage.

    `list_depths[i]` says how many levels of lists output i is taken apart by expands (0: none);
    `masks[i]` that the value of output i (or its elements, at the deepest level) is used as a mask
    and so must be boolean. `chunked` are the Domains whose members arrive in chunks while a Grain
    of this Call runs: its stage yields them one by one (none: members come with the report).
    """

    id: int
    stage: str
    domain: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    list_depths: tuple[int, ...]
    masks: tuple[bool, ...]
    pool: int
    where: Where
    chunked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pool:
    """Persistent workers of one stage object. Two Calls may share one.

    `target.resolve()` gives the class or function, on the driver and on a worker;
    `args`/`kwargs` are its constructor arguments.
    `retry_budget` counts the charged attempts of a Grain (1: never tried again).
    `batch_limit_s` and `row_limit_s` are seconds at a worker, `memory_limit_mb` MiB beyond what it
    had once it was built (None: no limit). `recycle_after_batches` batches, or `recycle_above_mb`
    MiB of private resident memory, are a worker's life (None: the run's). `backend_patience_s` is
    how long it may wait for a service behind it that is down (None: it does not). With a
    `concurrency` above 1 a worker holds that many rows at once, each a batch of its own. A batch
    that is not full waits `linger_s` seconds for more (None: it does not). `max_pending`
    values or `max_pending_mb` MiB of what it made may be pending at once (None: no bound).
    """

    id: int
    stage: str
    target: StageTarget
    is_class: bool
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch_size: int
    replicas: int
    rowwise: bool
    outputs: int
    retry_budget: int
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    label_selector: Mapping[str, str] = field(default_factory=dict)
    node_setup: StageTarget | None = None
    batch_limit_s: float | None = None
    row_limit_s: float | None = None
    memory_limit_mb: int | None = None
    recycle_after_batches: int | None = None
    recycle_above_mb: int | None = None
    backend_patience_s: float | None = None
    concurrency: int = 1
    linger_s: float | None = None
    max_pending: int | None = None
    max_pending_mb: float | None = None

    @property
    def is_concurrent(self) -> bool:
        """Whether a worker has several rows in flight, each a batch of its own."""
        return self.concurrency > 1

    @property
    def longest_row_s(self) -> float | None:
        """The limit of one row where each is a batch of its own."""
        limits = [one for one in (self.batch_limit_s, self.row_limit_s) if one is not None]
        return min(limits, default=None)


@dataclass(frozen=True)
class Plan:
    """What a Program compiles to. `output_ports` are in the order the Program returned them;
    `single_output` says that it returned one Port and not a tuple."""

    name: str
    version: str
    domains: tuple[Domain, ...]
    ports: tuple[Port, ...]
    calls: tuple[Call, ...]
    reduces: tuple[Reduce, ...]
    pools: tuple[Pool, ...]
    output_ports: tuple[int, ...]
    single_output: bool
    fingerprint: str
    source_hash: str
    source_list_depth: int
    source_is_mask: bool

    def describe(self) -> str:
        """The Plan as text for people: Domains, Calls, pools, batch sizes, what reads what."""
        from rayorch_prefect.program.explain import explain

        return explain(self)

    def as_data(self) -> dict[str, Any]:
        """The Plan as plain data for programs, fit for JSON, without what may be a secret."""
        from rayorch_prefect.program.plan_data import plan_data

        return plan_data(self)
