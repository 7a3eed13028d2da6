"""What a night needs, looked at one by one: each check is a line, and none raises."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, requires, version

from rayorch_prefect.errors import RayorchError, UsageError
from rayorch_prefect.execution.cluster import refuse_client, require_answer
from rayorch_prefect.execution.cluster_look import ClusterLook, look_at_cluster
from rayorch_prefect.execution.machine import SHARED_MEMORY, Machine
from rayorch_prefect.storage import S3Location, StoreFeatures, probe
from rayorch_prefect.storage.clock_skew import REFUSED_SECONDS, clock_skew

PACKAGES = ("prefect", "ray", "prefect-ray", "pyarrow", "boto3")

_GIB = 1024**3
_LITTLE_MEMORY = 2 * _GIB
# What Ray takes for its object store unless told.
_OBJECT_STORE_SHARE = 0.3
_SKEW_SECONDS = 30.0


class Mark(StrEnum):
    """How a check went, best first."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found; `to_do` is empty where nothing is to be done."""

    check: str
    mark: Mark
    said: str
    to_do: str = ""


def findings(destination: S3Location | None, start_ray: bool) -> Iterable[Finding]:
    """All checks, one after the other as they are asked for; those of the store need a place."""
    yield looked("versions", versions)
    yield looked("memory", lambda: memory(Machine.this()))
    yield looked(SHARED_MEMORY, lambda: shared_memory(Machine.this()))
    yield looked("ray", lambda: ray_cluster(start_ray))
    yield looked("prefect", prefect_api)
    yield looked("settings", settings)
    if destination is None:
        yield Finding("store", Mark.OK, "not looked at", "give --destination s3://bucket/out/")
        return
    yield looked("store", lambda: store(probe(destination)))
    yield looked("clock", lambda: clock(clock_skew(destination)))


def looked(check: str, look: Callable[[], Finding]) -> Finding:
    """What `look` finds; what it raises is a problem, and our own errors say what to do."""
    try:
        return look()
    except RayorchError as error:
        return Finding(check, Mark.PROBLEM, str(error))
    except Exception as error:
        return Finding(check, Mark.PROBLEM, f"{type(error).__name__}: {error}")


def versions(packages: Iterable[str] = PACKAGES) -> Finding:
    """Python's, ours and those of `packages`, held against what our package asks for."""
    ours = f"rayorch-prefect {version('rayorch-prefect')}"
    python = f"python {sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    found = {name: _version(name) for name in packages}
    said = ", ".join([ours, python, *(f"{name} {has or 'missing'}" for name, has in found.items())])
    wanted = {name: _at_least(name) for name in found}
    wrong = [name for name, has in found.items() if _numbers(has) < _numbers(wanted[name])]
    if wrong or None in found.values():
        return Finding("versions", Mark.PROBLEM, said, "pip install --upgrade rayorch-prefect")
    return Finding("versions", Mark.OK, said)


def memory(machine: Machine) -> Finding:
    said = f"{_gib(machine.memory_free)} of {_gib(machine.memory)} are free"
    if machine.memory_free >= _LITTLE_MEMORY:
        return Finding("memory", Mark.OK, said)
    to_do = "end what else runs here: below 2 GiB Ray may end workers, or not start"
    return Finding("memory", Mark.WARNING, said, to_do)


def shared_memory(machine: Machine) -> Finding:
    """Whether the values in flight of a local Ray find room."""
    said = f"{_gib(machine.shared_free)} of {_gib(machine.shared)} are free"
    wanted = _OBJECT_STORE_SHARE * machine.memory
    if machine.shared_free >= wanted:
        return Finding(SHARED_MEMORY, Mark.OK, said)
    to_do = (
        f"make it {_gib(wanted)} (docker run --shm-size, Kubernetes emptyDir with medium: Memory): "
        "else a Ray of this machine has a smaller object store, or one on its disk"
    )
    return Finding(SHARED_MEMORY, Mark.WARNING, said, to_do)


def ray_cluster(start_ray: bool) -> Finding:
    """The night's cluster; without one, a Ray is started only if that is asked for.

    Raises UsageError for the address of a Ray client or a block that is none, ClusterError if no
    cluster answers, ServerNotReached.
    """
    address = _ray_set() or os.environ.get("RAY_ADDRESS")
    if not address and not start_ray:
        said = (
            "RAY_ADDRESS is not set: a Ray that runs on this machine is used, else one is started"
        )
        return Finding("ray", Mark.OK, said)
    refuse_client(address)
    require_answer(address)
    return _of_cluster(address or "a Ray of this machine", look_at_cluster(address))


def _ray_set() -> str | None:
    """The address that the setting `ray_address` says, which goes before RAY_ADDRESS."""
    from rayorch_prefect.binding.block_references import cluster, names_block
    from rayorch_prefect.binding.settings import settings_set
    from rayorch_prefect.cli import places

    try:
        asked = settings_set().get("ray_address")
    except UsageError:  # the check of the settings says so
        return None
    with places.prefect_api() if names_block(asked) else nullcontext():
        return cluster(asked)[0]


def _of_cluster(where: str, found: ClusterLook) -> Finding:
    nodes = "1 node" if found.nodes == 1 else f"{found.nodes} nodes"
    said = (
        f"{where}: {nodes}, {found.cpus:g} CPUs, {found.gpus:g} GPUs, "
        f"{_gib(found.memory)} memory, {_gib(found.object_store)} object store"
    )
    if found.cpus:
        return Finding("ray", Mark.OK, said)
    return Finding(
        "ray", Mark.WARNING, said, "add nodes: stages need CPUs unless they say otherwise"
    )


def prefect_api() -> Finding:
    """Raises ServerNotReached if none answers where one is named."""
    from prefect.settings import PREFECT_API_URL

    from rayorch_prefect.binding.prefect_server import require_answer as require_prefect

    url = PREFECT_API_URL.value()
    if not url:
        said = "PREFECT_API_URL is not set: a night starts a local server for itself"
        return Finding("prefect", Mark.OK, said)
    require_prefect()
    return Finding("prefect", Mark.OK, f"{url} answers")


def settings() -> Finding:
    """What Prefect's settings say of ours. Raises UsageError for one that a night would refuse."""
    from rayorch_prefect.binding.opening import checked_settings
    from rayorch_prefect.binding.unknown_settings import unknown_settings

    known = checked_settings({}, own_upload=False)
    if unknown := unknown_settings():
        return Finding("settings", Mark.WARNING, "; ".join(unknown), "see docs/settings.md")
    return Finding("settings", Mark.OK, ", ".join(sorted(known)) or "none is set")


def store(features: StoreFeatures) -> Finding:
    """What the probe has seen: a store that takes, lists and gives back objects is no problem."""
    todo: list[str] = []
    if not (features.conditional_create and features.conditional_update):
        todo.append("let all runs use one Prefect server, which then keeps them apart")
    if features.left:
        todo.append(f"grant s3:DeleteObject, or leave it: {features.left}")
    mark = Mark.WARNING if todo else Mark.OK
    return Finding(
        "store", mark, f"may list, read and write; {features.describe()}", "; ".join(todo)
    )


def clock(skew: float | None) -> Finding:
    if skew is None:
        return Finding("clock", Mark.WARNING, "the store does not tell the time")
    said = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the store's"
    to_do = "set the clock of this machine, or of the store"
    if abs(skew) > REFUSED_SECONDS:
        return Finding("clock", Mark.PROBLEM, said, f"{to_do}: S3 refuses such requests")
    if abs(skew) > _SKEW_SECONDS:
        return Finding("clock", Mark.WARNING, said, to_do)
    return Finding("clock", Mark.OK, said)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _at_least(name: str) -> str:
    asked = [
        re.match(rf"{re.escape(name)}>=([\d.]+)", each)
        for each in requires("rayorch-prefect") or ()
    ]
    return next((match.group(1) for match in asked if match), "0")


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text or "0")]


def _gib(count: float) -> str:
    return f"{count / _GIB:.1f} GiB"
