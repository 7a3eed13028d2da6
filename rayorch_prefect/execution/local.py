"""A Program in this process: one thread, no cluster; breakpoints in stages work."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rayorch_prefect.errors import InternalError, UsageError
from rayorch_prefect.execution.bounds import bound_of, checked_bound
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.local_backend import LocalBackend
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.execution.rows import describe_rows
from rayorch_prefect.program.declare import Program, require_program
from rayorch_prefect.replay.recorder import MOST_MB, Recorder
from rayorch_prefect.scheduler.policies import FIFO, Policy, policy_of


def run_local(
    program: Program,
    rows: Iterable[Any],
    *,
    seed: int | None = None,
    losses: float = 0.0,
    lost_values: float = 0.0,
    max_pending: int | None = None,
    max_pending_mb: float | None = None,
    policy: str | Policy = FIFO,
    record: str | Path | None = None,
    record_mb: float = MOST_MB,
) -> Iterator[Parent]:
    """Run `rows` (any picklable values) as one microbatch; each parent as it completes.

    With `seed`, batches end in a random order that the seed fixes and a share of `losses` of
    them is lost with its worker; a share of `lost_values` of the large values that a batch reads
    is lost, as with a node, and made again. `max_pending` and `max_pending_mb` bound what is
    pending as an Engine's do, here by default not at all. `policy` and `record` are as an Engine's
    too. Raises StageStartError if a stage cannot be built, UsageError for a policy that there is
    not or a recording that cannot be made.
    """
    require_program(program)
    policy_of(policy)
    bound = bound_of(*checked_bound(max_pending, max_pending_mb))
    listed = listed_rows(rows)
    if listed:
        recorder = None if record is None else Recorder(record, record_mb)
        backend = LocalBackend(program.plan, seed, losses, lost_values)
        driver = Driver(
            program.plan, backend, time.time, bound=bound, policy=policy, recorder=recorder
        )
        try:
            yield from _parents(driver, backend, listed)
        finally:
            backend.close()
            driver.chronicle.close()


def _parents(driver: Driver, backend: LocalBackend, rows: Sequence[Any]) -> Iterator[Parent]:
    done: deque[Parent | BaseException] = deque()
    driver.start()
    driver.submit(rows, row_keys(rows), describe_rows(driver.plan, rows), done.append)
    left = len(rows)
    while left:
        while done:
            parent = done.popleft()
            if isinstance(parent, BaseException):
                raise parent
            left -= 1
            yield parent
        message = backend.step() if left else None
        if message is not None:
            driver.receive(message)
        elif left and driver.next_deadline < math.inf:
            time.sleep(max(0.0, driver.next_deadline - time.monotonic()))
            driver.tick()
        elif left and not done:
            raise InternalError(f"{left} parents never completed")


def listed_rows(rows: Iterable[Any]) -> list[Any]:
    """The rows of a run. Raises UsageError for what cannot be iterated over."""
    try:
        each = iter(rows)
    except TypeError:
        raise UsageError(
            f"rows is {rows!r}; expected source rows, such as a list of them"
        ) from None
    return list(each)


def row_keys(rows: Sequence[Any], keys: Sequence[str] | None = None) -> list[str]:
    """What rows are called in messages: the given keys, their `uri`, or their place.

    Raises UsageError if there is not one key a row.
    """
    if keys is not None:
        if len(keys) != len(rows):
            raise UsageError(f"{len(keys)} keys for {len(rows)} rows; expected one a row")
        return list(keys)
    return [str(getattr(row, "uri", f"row {index}")) for index, row in enumerate(rows)]
