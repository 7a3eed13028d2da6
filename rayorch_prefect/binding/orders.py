"""What a night is asked to do, checked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from rayorch_prefect.binding.events import PARENT_EVENTS
from rayorch_prefect.binding.failure_policies import FailurePolicy, StoppedAtFailure
from rayorch_prefect.binding.hooks import check_hooks
from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.errors import DoesNotFit, StageStartError, UsageError
from rayorch_prefect.execution.bounds import AUTO, checked_bound
from rayorch_prefect.execution.environments import environment
from rayorch_prefect.execution.log_lines import WARNING, checked_level
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.replay.recorder import require_folder
from rayorch_prefect.scheduler.policies import FIFO, policy_of
from rayorch_prefect.storage import S3Location, refuse_nested
from rayorch_prefect.storage.client import READ_TIMEOUT_SETTING, check_timeout
from rayorch_prefect.storage.terms import check_part_bytes

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

# Reasons that stand whenever the same is run again.
_BY_DECLARATION = (StageStartError.__name__, DoesNotFit.__name__)

# Reasons that stand until the failure that the policy stopped at is seen to.
_BY_POLICY = StoppedAtFailure.__name__

_MOST_KEYS = 50

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
    "ray_address",
    "working_dir",
    "lease_seconds",
    "policy",
    "record",
    "parent_events",
    "stage_log_level",
)


@dataclass(frozen=True, slots=True)
class Order:
    """The settings of one night.

    `program` is the name it was asked by (`module:attribute`), empty for a Program object.
    `microbatch_size` counts sources; `failure_policy` says which failures are tolerated, in the
    words of `FailurePolicy.parse`; `upload_workers` bounds the uploads in flight of one
    microbatch; one upload task run publishes up to `upload_group` parents, in threads of the
    flow's process or on Ray workers, as `upload_runner` says. `ray_address` None means the
    initialised Ray, or RAY_ADDRESS, or a local one. `only` narrows the sources to these keys or
    URIs, `limit` bounds how many of them run; `force` ignores the ledger; `dry_run` only plans;
    `allow_empty` takes an empty prefix. `working_dir` is a folder of modules that Ray brings to
    its workers, `runtime_env` what else it gives them. `upload_task` names a task that uploads in
    place of ours (`module:attribute`, empty for a Task object without a name). Another run may
    take over `lease_seconds` after this one's last sign of life. An upload is tried up to
    `upload_tries` times while the store is unavailable, with growing gaps. `max_pending` and
    `max_pending_mb` are the Engine's bounds, `policy` is the name of its policy. `record` is a
    folder for a recording of the run's events. At most `parent_events` Prefect events are emitted
    of published parents, and of failed ones. What stages log from `stage_log_level` on is in the
    flow runs' logs. `hooks` are functions, or their names, by the names in `HOOKS`. An answer of
    the store may take `s3_read_timeout` seconds; longer artifacts go in parts of `s3_part_bytes`;
    None is the store's own default. `asked_as` names the blocks that arguments were asked by.
    """

    program: str
    source: S3Location
    destination: S3Location
    microbatch_size: int = 64
    max_active_microbatches: int = 2
    failure_policy: int | str = 0
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
    parent_events: int = PARENT_EVENTS
    stage_log_level: str = WARNING
    hooks: Mapping[str, Any] = field(default_factory=dict, repr=False)
    s3_read_timeout: float | None = None
    s3_part_bytes: int | None = None
    asked_as: Mapping[str, str] = field(default_factory=dict, repr=False)

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
        if not SHORTEST_LEASE <= self.lease_seconds < math.inf:
            raise UsageError(
                f"lease_seconds is {self.lease_seconds:g}; expected at least {SHORTEST_LEASE:g}, "
                "as stores tell the time in whole seconds"
            )
        if self.parent_events < 0:
            raise UsageError(f"parent_events is {self.parent_events}; expected 0 or more")
        FailurePolicy.parse(self.failure_policy)
        check_hooks(self.hooks)
        checked_bound(self.max_pending, self.max_pending_mb)
        policy_of(self.policy)
        checked_level(self.stage_log_level, "stage_log_level")
        if self.record is not None:
            require_folder(self.record)
        check_timeout(self.s3_read_timeout)
        check_part_bytes(self.s3_part_bytes)
        refuse_nested(self.source, self.destination)
        self.worker_environment()

    def shown(self) -> list[tuple[str, object]]:
        """The settings by name, without those that may hold a secret."""
        return [(each.name, getattr(self, each.name)) for each in fields(self) if each.repr]

    def worker_environment(self) -> dict[str, Any]:
        """Ray's runtime_env for this night. Raises UsageError."""
        asked = environment(self.working_dir, self.runtime_env)
        if self.s3_read_timeout is not None:
            seconds = str(self.s3_read_timeout)
            asked["env_vars"] = {READ_TIMEOUT_SETTING: seconds, **asked.get("env_vars", {})}
        return asked


class NextStep(NamedTuple):
    """What to do after a night, and the one command to run then; both empty if nothing is left."""

    advice: str = ""
    command: str = ""

    def __str__(self) -> str:
        return f"{self.advice}: {self.command}" if self.command else ""


def what_next(order: Order, counts: Tally) -> NextStep:
    """What to run next."""
    left = counts.failed - counts.remembered + counts.not_processed
    if not left and not counts.remembered and not counts.with_gaps:
        return NextStep()
    again = command_again(order, retry_failed=False)
    retry = command_again(order, retry_failed=True)
    if counts.broken_off and any(reason.startswith(_BY_DECLARATION) for reason in counts.reasons):
        return NextStep("mend the stage or what it asks for, then run again", again)
    if counts.broken_off and any(reason.startswith(_BY_POLICY) for reason in counts.reasons):
        advice = (
            "see to what stopped the night, or it may stop there again, and run again; published "
            "sources are skipped"
        )
        return NextStep(advice, again)
    if counts.broken_off:
        return NextStep("run the same again, published sources are skipped", again)
    if counts.failed and set(counts.by_kind) == {Kind.UPLOAD_FAILED}:
        place = f"what {order.upload_task} stores to" if order.upload_task else "the store"
        advice = (
            f"look at {place}, then run the same again; sources whose upload failed are computed "
            "again, as their values are not kept"
        )
        return NextStep(advice, again)
    if counts.failed:
        advice = "mend or remove the failed sources, or mend the program, then"
        return NextStep(advice, retry)
    if counts.left_out:
        return NextStep("to run the sources that were left out", again)
    return NextStep("to run the sources with gaps again", retry)


def command_again(order: Order, *, retry_failed: bool) -> str:
    """The command that runs the same night again."""
    named = all(isinstance(hook, str) for hook in order.hooks.values())
    # A command of thousands of keys is none to copy; whoever named them can again.
    unsaid = order.upload_task == "" or not named or len(order.only) > _MOST_KEYS
    if not order.program or unsaid:
        return "this flow" + (" with retry_failed=True" if retry_failed else "")
    words = ["rayorch-prefect", "run", "--program", order.program]
    for name in ("source", "destination"):
        words += _option(name, order.asked_as.get(name) or str(getattr(order, name)))
    for setting in fields(order):
        value = getattr(order, setting.name)
        if setting.name in _SAID_AGAIN and value != setting.default:
            said = order.asked_as.get(setting.name) or str(value)
            words += _option(setting.name, said)
    for name, hook in order.hooks.items():
        words += _option("hook", f"{name}={hook}")
    for key in order.only:
        words += _option("only", key)
    return shlex.join(words + (["--retry-failed"] if retry_failed else []))


def _option(name: str, value: str) -> list[str]:
    option = "--" + name.replace("_", "-")
    # Apart from its option, a value that begins with a dash is read as another option.
    return [f"{option}={value}"] if value.startswith("-") else [option, value]
