"""What a night is asked to do, checked."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.errors import UsageError
from rayorch_prefect.execution.bounds import AUTO, checked_bound
from rayorch_prefect.execution.environments import environment
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.replay.recorder import require_folder
from rayorch_prefect.scheduler.policies import FIFO, policy_of
from rayorch_prefect.storage import S3Location, refuse_nested

UPLOAD_RUNNERS = ("threads", "ray")
"""Where upload task runs go: threads of the flow's process, or Ray workers."""

SHORTEST_LEASE = 4.0

_COUNTS = (
    "microbatch_size",
    "max_active_microbatches",
    "upload_workers",
    "upload_group",
    "upload_tries",
    "limit",
)

# What a command for the next run repeats; `limit` and `force` were meant for this one, and a
# runtime_env may hold what must not be shown.
_SAID_AGAIN = (
    "microbatch_size",
    "max_active_microbatches",
    "failure_policy",
    "upload_workers",
    "upload_group",
    "upload_tries",
    "upload_runner",
    "upload_task",
    "working_dir",
    "lease_seconds",
    "policy",
    "record",
)


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of one night.

    `program` is the name it was asked by (`module:attribute`), empty for a Program object.
    `microbatch_size` counts sources; `failure_policy` counts tolerated failed sources;
    `upload_workers` bounds the uploads in flight of one microbatch; one upload task run publishes
    up to `upload_group` parents, in threads of the flow's process or on Ray workers, as
    `upload_runner` says. `ray_address` None means the initialised Ray, or RAY_ADDRESS, or
    a local one. `only` narrows the sources to these keys or URIs, `limit` bounds how many of them
    run; `force` ignores the ledger; `dry_run` only plans; `allow_empty` takes an empty prefix.
    `working_dir` is a folder of modules that Ray brings to its workers, `runtime_env` what else
    it gives them. `upload_task` names a task that uploads in place of ours (`module:attribute`,
    empty for a Task object without a name). Another run may take over `lease_seconds` after this
    one's last sign of life. An upload is tried up to `upload_tries` times while the store is
    unavailable, with growing gaps. `max_pending` and `max_pending_mb` are the Engine's bounds,
    `policy` is the name of its policy.
    `record` is a folder for a recording of the run's events.
    """

    program: str
    source: S3Location
    destination: S3Location
    microbatch_size: int = 64
    max_active_microbatches: int = 2
    failure_policy: int = 0
    retry_failed: bool = False
    upload_workers: int = 4
    ray_address: str | None = None
    upload_group: int = 1
    upload_runner: str = "threads"
    limit: int | None = None
    only: tuple[str, ...] = ()
    force: bool = False
    dry_run: bool = False
    allow_empty: bool = False
    working_dir: str | None = None
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    upload_task: str | None = None
    lease_seconds: float = 60.0
    upload_tries: int = 4
    max_pending: int | None = None
    max_pending_mb: float | str | None = AUTO
    policy: str = FIFO
    record: str | None = None

    def __post_init__(self) -> None:
        """Raises UsageError, naming the setting and what would be right."""
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; expected at least 1")
        if self.upload_runner not in UPLOAD_RUNNERS:
            raise UsageError(
                f"upload_runner is {self.upload_runner!r}; expected one of "
                f"{', '.join(UPLOAD_RUNNERS)}"
            )
        if self.upload_task is not None and self.upload_group != 1:
            raise UsageError(
                f"upload_group is {self.upload_group}; expected 1 with an upload task of your "
                "own, which gets one parent a task run"
            )
        if self.lease_seconds < SHORTEST_LEASE:
            raise UsageError(
                f"lease_seconds is {self.lease_seconds:g}; expected at least {SHORTEST_LEASE:g}, "
                "as stores tell the time in whole seconds"
            )
        if self.failure_policy < 0:
            raise UsageError(
                f"failure_policy is {self.failure_policy}; expected the number of failed "
                "sources to tolerate, 0 for none"
            )
        checked_bound(self.max_pending, self.max_pending_mb)
        policy_of(self.policy)
        if self.record is not None:
            require_folder(self.record)
        refuse_nested(self.source, self.destination)
        self.worker_environment()

    def worker_environment(self) -> dict[str, Any]:
        """Ray's runtime_env for this night. Raises UsageError."""
        return environment(self.working_dir, self.runtime_env)


def what_next(order: Order, counts: Tally) -> str:
    """What to run next, empty if nothing is left to do."""
    left = counts.failed - counts.remembered + counts.not_processed
    if not left and not counts.remembered and not counts.with_gaps:
        return ""
    again = _again(order, retry_failed=False)
    retry = _again(order, retry_failed=True)
    if counts.broken_off:
        return f"run the same again, published sources are skipped: {again}"
    if counts.failed and set(counts.by_kind) == {Kind.UPLOAD_FAILED}:
        return (
            "look at the store, then run the same again; sources whose upload failed are computed "
            f"again, as their values are not kept: {again}"
        )
    if counts.failed:
        return f"mend or remove the failed sources, or mend the program, then: {retry}"
    if counts.left_out:
        return f"to run the sources that were left out: {again}"
    return f"to run the sources with gaps again: {retry}"


def _again(order: Order, retry_failed: bool) -> str:
    if not order.program or order.upload_task == "":
        return "this flow" + (" with retry_failed=True" if retry_failed else "")
    words = ["rayorch-prefect", "run", "--program", order.program]
    words += ["--source", str(order.source), "--destination", str(order.destination)]
    for setting in fields(order):
        value = getattr(order, setting.name)
        if setting.name in _SAID_AGAIN and value != setting.default:
            words += ["--" + setting.name.replace("_", "-"), str(value)]
    for key in order.only:
        words += ["--only", key]
    return shlex.join(words + (["--retry-failed"] if retry_failed else []))
