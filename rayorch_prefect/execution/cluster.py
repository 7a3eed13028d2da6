"""The Ray cluster: connecting to it, and whether the pools fit it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RuntimeEnvSetupError

from rayorch_prefect.errors import ClusterError, DoesNotFit, UsageError
from rayorch_prefect.execution import full_disk
from rayorch_prefect.program.plan import Plan, Pool
from rayorch_prefect.replay.redaction import without_secrets

CLIENT_SCHEME = "ray://"
ANSWER_S = 10.0


def connect(address: str | None, runtime_env: Mapping[str, Any] | None = None) -> bool:
    """Use the process's Ray, or connect to `address` (or RAY_ADDRESS), or start a local one.

    A Ray that is connected here has `runtime_env` for all its workers. Returns whether it was done
    here, so that it is ended here too. Raises UsageError for a Ray client address, ClusterError if
    no cluster answers.
    """
    if ray.is_initialized() and not address:
        return False
    target = address or os.environ.get("RAY_ADDRESS")
    refuse_client(target)
    if ray.is_initialized():
        return False
    require_answer(target)
    with own_sigterm():
        try:
            ray.init(address=target, runtime_env=runtime_env or None, **_local_options(target))
        except (OSError, ValueError, RuntimeError, RuntimeEnvSetupError) as error:
            ray.shutdown()  # it may have connected before it failed
            full = full_disk.among(*full_disk.temporary_folders())
            raise ClusterError(
                f"no Ray cluster at {target or 'this machine'}: {error}{full}"
            ) from error
    return True


def object_store_bytes() -> float:
    """What the object stores of all nodes of the connected cluster hold, in bytes."""
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return float(resources.get("object_store_memory", 0.0))


def refuse_client(address: str | None) -> None:
    """Raise UsageError for the address of a Ray client."""
    if address and address.startswith(CLIENT_SCHEME):
        raise UsageError(
            f"{without_secrets(address)} is a Ray client address: values would pass through a "
            "proxy. Run the driver on the cluster, or give the address of its GCS (host:6379)"
        )


def require_answer(target: str | None) -> None:
    """Raise ClusterError if nothing listens at a `host:port`; other addresses are not asked.

    Ray itself tries for minutes, and says so only in its own log.
    """
    host, _, port = (target or "").rpartition(":")
    if not host or not port.isdecimal():
        return  # "auto", "local" or none: no address of a cluster
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {target}: {error}; see `ray status` on its head node, and "
            "give the address of its GCS (host:6379)"
        ) from error


def _local_options(target: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"logging_level": "WARNING", "log_to_driver": True}
    if target is None:
        options |= {"include_dashboard": False}
    return options


@contextmanager
def own_sigterm() -> Iterator[None]:
    """`ray.init` takes SIGTERM over, and a cancelled flow would die without its `finally`.

    A SIGTERM that Ray gets in the main thread meanwhile is given to the handler of before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as left:
        _give_back(before)
        if left.code == signal.SIGTERM:  # as Ray's handler says it
            os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        _give_back(before)


def _give_back(before: Any) -> None:
    if before is not None:
        signal.signal(signal.SIGTERM, before)


def disarm_abort() -> None:
    """To be called first by a SIGTERM handler.

    Ray's handler in C calls the one of before, ours, but has set an alarm that aborts the process
    3 s later: too early for putting everything away.
    """
    signal.alarm(0)


def check_fit(plan: Plan) -> None:
    """Raise DoesNotFit if some worker fits no node, or all together do not fit the cluster."""
    alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    for pool in plan.pools:
        needs = demand(pool)
        wanted = [node for node in alive if _labelled(pool.label_selector, node.get("Labels", {}))]
        if alive and not wanted:
            raise DoesNotFit(
                f"stage {pool.stage}: no node has the labels of its label_selector "
                f"{dict(pool.label_selector)} "
                f"(nodes: {'; '.join(str(node.get('Labels', {})) for node in alive)})"
            )
        nodes = [node["Resources"] for node in wanted]
        if not any(_fits(needs, node) for node in nodes):
            raise DoesNotFit(
                f"stage {pool.stage}: a worker needs {_text(needs)}, and no node has that "
                f"(nodes: {'; '.join(_text(_shown(node, needs)) for node in nodes) or 'none'})"
            )
    _check_total(plan, [node["Resources"] for node in alive])


def _check_total(plan: Plan, nodes: Sequence[Mapping[str, float]]) -> None:
    total: dict[str, float] = {}
    for pool in plan.pools:
        for name, amount in demand(pool).items():
            total[name] = total.get(name, 0.0) + amount * pool.replicas
    for name, amount in total.items():
        there = sum(node.get(name, 0.0) for node in nodes)
        if amount > there + 1e-6:
            asked = ", ".join(
                f"{pool.stage} {demand(pool)[name] * pool.replicas:g} ({pool.replicas} workers)"
                for pool in plan.pools
                if name in demand(pool)
            )
            raise DoesNotFit(
                f"the stages need {amount:g} {name} together and the cluster has {there:g}: "
                f"{asked}; lower replicas or the stages' resources, or add nodes"
            )


def demand(pool: Pool) -> dict[str, float]:
    """What one worker of a pool needs, by Ray's names."""
    needs = {"CPU": pool.num_cpus, "GPU": pool.num_gpus, **pool.resources}
    return {name: amount for name, amount in needs.items() if amount}


def waiting_text(plan: Plan, starting: Sequence[int]) -> str:
    """Which stages still wait for workers, what each needs, and what the cluster has free.

    `starting[i]` counts the workers of pool i that are not ready.
    """
    waiting = [pool for pool in plan.pools if starting[pool.id]]
    stages = ", ".join(
        f"stage {pool.stage} {starting[pool.id]} of {pool.replicas} "
        f"(each needs {_text(demand(pool)) or 'no resources'})"
        for pool in waiting
    )
    names = {name: 0.0 for pool in waiting for name in demand(pool)}
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    said = f"{stages}; free in the cluster: {_text(_shown(free, names)) or 'not asked'}"
    if all(_fits(demand(pool), free) for pool in waiting):
        said += ": that would do, so they are being started, unless it is spread over nodes"
    return said


def _fits(needs: Mapping[str, float], node: Mapping[str, float]) -> bool:
    return all(node.get(name, 0.0) + 1e-6 >= amount for name, amount in needs.items())


def _labelled(selectors: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(_selected(selector, labels.get(name)) for name, selector in selectors.items())


def _selected(selector: str, label: str | None) -> bool:
    """As Ray does: `v`, `!v`, `in(v,w)`, `!in(v,w)`; a node without the label satisfies a `!`."""
    plain = selector.removeprefix("!")
    several = plain.startswith("in(") and plain.endswith(")")
    values = plain[3:-1].split(",") if several else [plain]
    return (label in [value.strip() for value in values]) != selector.startswith("!")


def _shown(node: Mapping[str, float], needs: Mapping[str, float]) -> dict[str, float]:
    return {name: node.get(name, 0.0) for name in needs}


def _text(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in amounts.items())
