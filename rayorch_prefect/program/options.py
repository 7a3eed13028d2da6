"""The options of a stage and their checks."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NoReturn, TypedDict, cast

from rayorch_prefect.program.refusal import refuse, shown
from rayorch_prefect.program.targets import TargetHolder

# With less, Ray's own threads in the worker run short.
LEAST_MEMORY_MB = 256
BACKEND_PATIENCE_S = 300.0


class StageOptions(TypedDict, total=False):
    """The keyword options of `stage(...)`.

    batch_size    rows of one batch, at least 1 (default 1)
    replicas      workers of the pool, at least 1 (default 1)
    rowwise       whether a call gets one row and returns one value; default: a function does, a
                  class gets one list per input and returns one list
    outputs       output Ports of a Call, at least 1 (default 1); several are returned as a tuple
    num_cpus      CPUs a worker reserves (default 0.1: small, so that every pool of a Program
                  fits a laptop at once; raise it for stages that keep a core busy)
    num_gpus      GPUs a worker reserves, fractions too (default 0)
    resources     further Ray resources a worker reserves, name to amount
    runtime_env   Ray's runtime environment of the workers, over that of the Engine
    label_selector  labels that a worker's node must have, name to Ray's selector of values:
                  "v", "!v", "in(v,w)" or "!in(v,w)"
    node_setup    a function without arguments, called once on each node before the first of the
                  stage's workers there is built (to fetch model files, say)
    retry_budget  charged attempts of one Grain, at least 1 (default 3; 1: never tried again)
    batch_limit_s  seconds that a worker may take for one batch (default: no limit); past them it is
                  ended and replaced, and the batch is an attempt that failed
    row_limit_s   seconds that a worker may take for one row, of row-wise stages only (default: no
                  limit); past them it is ended and replaced, and the attempt is that row's alone
    memory_limit_mb  MiB that a worker may take while it works beyond what it had once it was built,
                  at least 256 (default: no limit; kept on Linux). Past them Python code gets
                  MemoryError, and native code that aborts ends its worker
    recycle_after_batches  batches after which a worker is closed and another takes its place, at
                  least 1 (default: never)
    recycle_above_mb  MiB of private resident memory above which the same is done after a batch
                  (default: never; measured on Linux)
    backend_patience_s  seconds that the stage may wait for a service behind it that is down
                  (default 300): its failures (`BackendFailure`, connections refused, time-outs,
                  answers 429 and 5xx) pause the stage and charge no row; then the run ends, and
                  what is left is not processed. None: they are attempts like any other
    concurrency   rows in flight in one worker, of async stages only (default 1: one after another).
                  With more, each row is a batch of its own and the worker gets the next as one ends
    linger_s      seconds that a batch of fewer than batch_size rows waits for more while a worker
                  idles (default: none); only while stages before it have work
    max_pending   values that the stage may have made, or be making, whose last reader has not
                  committed, at least 1 (default: only the Engine's bound). Values in the making
                  are estimated; a parent that alone needs more passes, one step after another
    max_pending_mb  the same, counting their MiB (default: only the Engine's bound)
    """

    batch_size: int
    replicas: int
    rowwise: bool | None
    outputs: int
    num_cpus: float
    num_gpus: float
    resources: Mapping[str, float] | None
    runtime_env: Mapping[str, Any] | None
    label_selector: Mapping[str, str] | None
    node_setup: Callable[[], object] | None
    retry_budget: int
    batch_limit_s: float | None
    row_limit_s: float | None
    memory_limit_mb: int | None
    recycle_after_batches: int | None
    recycle_above_mb: int | None
    backend_patience_s: float | None
    concurrency: int
    linger_s: float | None
    max_pending: int | None
    max_pending_mb: float | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The checked options of one stage."""

    batch_size: int = 1
    replicas: int = 1
    rowwise: bool | None = None
    outputs: int = 1
    num_cpus: float = 0.1
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    runtime_env: Mapping[str, Any] = field(default_factory=dict[str, Any])
    label_selector: Mapping[str, str] = field(default_factory=dict[str, str])
    node_setup: Callable[[], object] | None = None
    retry_budget: int = 3
    batch_limit_s: float | None = None
    row_limit_s: float | None = None
    memory_limit_mb: int | None = None
    recycle_after_batches: int | None = None
    recycle_above_mb: int | None = None
    backend_patience_s: float | None = BACKEND_PATIENCE_S
    concurrency: int = 1
    linger_s: float | None = None
    max_pending: int | None = None
    max_pending_mb: float | None = None

    def changed(self, stage: str, options: Mapping[str, Any]) -> Settings:
        """A copy with `options`; ProgramError names the stage, the option and what is right."""
        for option in options:
            if option not in _CHECKS:
                _refuse_unknown(stage, option)
        checked: dict[str, Any] = {
            name: _CHECKS[name](stage, name, value) for name, value in options.items()
        }
        return replace(self, **checked)


def _bad(stage: str, option: str, value: object, right: str) -> NoReturn:
    refuse(f"stage {stage}: option {option} must be {right}, not {shown(value)}.")


def _refuse_unknown(stage: str, option: str) -> NoReturn:
    known = [one.name for one in fields(Settings)]
    near = difflib.get_close_matches(option, known, n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    refuse(f"stage {stage}: unknown option {option}.{meant} The options are {', '.join(known)}.")


def _count(stage: str, option: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        _bad(stage, option, value, "a whole number of at least 1")
    return value


def _count_or_none(stage: str, option: str, value: object) -> int | None:
    return None if value is None else _count(stage, option, value)


def _amount(stage: str, option: str, value: object) -> float:
    right = "a finite number of at least 0"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _bad(stage, option, value, right)
    if not math.isfinite(value) or value < 0:
        _bad(stage, option, value, right)
    return float(value)


def _seconds(stage: str, option: str, value: object) -> float | None:
    if value is None:
        return None
    seconds = _amount(stage, option, value)
    if not seconds:
        _bad(stage, option, value, "more than 0 seconds, or None (no limit)")
    return seconds


def _wait(stage: str, option: str, value: object) -> float | None:
    return None if value is None else _amount(stage, option, value) or None


def _mebibytes(stage: str, option: str, value: object) -> float | None:
    if value is None:
        return None
    amount = _amount(stage, option, value)
    if not amount:
        _bad(stage, option, value, "more than 0 MiB, or None (no bound)")
    return amount


def _memory(stage: str, option: str, value: object) -> int | None:
    right = f"a whole number of at least {LEAST_MEMORY_MB} MiB, or None (no limit)"
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < LEAST_MEMORY_MB:
        _bad(stage, option, value, right)
    return value


def _rowwise(stage: str, option: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        _bad(stage, option, value, "True, False or None (the default of its kind)")
    return value


def _resources(stage: str, option: str, value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        _bad(stage, option, value, "a mapping of resource names to amounts")
    amounts: dict[str, float] = {}
    for name, amount in value.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(name, str) or name in ("CPU", "GPU"):
            _bad(stage, option, name, "keyed by names other than CPU and GPU (num_cpus, num_gpus)")
        amounts[name] = _amount(stage, f"{option}[{name!r}]", amount)
    return amounts


def _runtime_env(stage: str, option: str, value: Any) -> dict[str, Any]:
    return _by_name(stage, option, value, "a mapping, as Ray's runtime_env is")


def _label_selector(stage: str, option: str, value: Any) -> dict[str, str]:
    right = "a mapping of label names to selectors such as 'eu' or '!in(a,b)'"
    selectors = _by_name(stage, option, value, right)
    for name, selector in selectors.items():
        if not isinstance(selector, str):
            _bad(stage, f"{option}[{name!r}]", selector, "a text such as 'eu' or '!in(a,b)'")
    return selectors


def _node_setup(stage: str, option: str, value: Any) -> Callable[[], object] | None:
    right = "a plain function that takes no arguments"
    if value is None:
        return None
    if not callable(value) or isinstance(value, type | TargetHolder):
        _bad(stage, option, value, right)
    if inspect.iscoroutinefunction(value):
        _bad(stage, option, value, right)
    try:
        inspect.signature(value).bind()
    except TypeError:
        _bad(stage, option, value, right)
    except ValueError:
        pass  # a C function does not say
    return cast(Callable[[], object], value)


def _by_name(stage: str, option: str, value: Any, right: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) for name in cast(Any, value)
    ):
        _bad(stage, option, cast(object, value), right)
    return dict(cast(Mapping[str, Any], value))


_CHECKS: dict[str, Callable[[str, str, Any], Any]] = {
    "batch_size": _count,
    "replicas": _count,
    "rowwise": _rowwise,
    "outputs": _count,
    "num_cpus": _amount,
    "num_gpus": _amount,
    "resources": _resources,
    "runtime_env": _runtime_env,
    "label_selector": _label_selector,
    "node_setup": _node_setup,
    "retry_budget": _count,
    "batch_limit_s": _seconds,
    "row_limit_s": _seconds,
    "memory_limit_mb": _memory,
    "recycle_after_batches": _count_or_none,
    "recycle_above_mb": _count_or_none,
    "backend_patience_s": _seconds,
    "concurrency": _count,
    "linger_s": _wait,
    "max_pending": _count_or_none,
    "max_pending_mb": _mebibytes,
}
