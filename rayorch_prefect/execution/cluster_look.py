"""What a Ray cluster has, seen by a process of its own.

Ray tries for minutes where something else listens, and writes to the terminal: the process is
ended after a while, and what it writes is not shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass

from rayorch_prefect.errors import ClusterError, RayorchError

_MARK = "rayorch-prefect cluster: "


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The living nodes of a cluster and what they have together; memories in bytes."""

    nodes: int
    cpus: float
    gpus: float
    memory: float
    object_store: float


def look_at_cluster(address: str | None, seconds: float = 60.0) -> ClusterLook:
    """Connect as a run would (None: to a Ray of this machine, or one that is started), and leave.

    Raises ClusterError if there is none, or it does not answer within so many seconds.
    """
    command = [sys.executable, "-m", "rayorch_prefect.execution.cluster_look", address or ""]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ended = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"no Ray cluster at {address or 'this machine'} within {seconds:g} s: see `ray status` "
            "on its head node"
        ) from None
    return _found(ended.stdout, ended.stderr)


def _found(output: str, errors: str) -> ClusterLook:
    told = [line for line in output.splitlines() if line.startswith(_MARK)]
    if not told:
        last = (errors.strip().splitlines() or ["without a word"])[-1]
        raise ClusterError(f"the process that looks at Ray has ended: {last}")
    found = json.loads(told[-1].removeprefix(_MARK))
    if "error" in found:
        raise ClusterError(found["error"])
    return ClusterLook(**found)


def _look(address: str | None) -> ClusterLook:
    import ray

    from rayorch_prefect.execution.cluster import connect

    connect(address)
    try:
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
    names = ("CPU", "GPU", "memory", "object_store_memory")
    return ClusterLook(len(alive), *(sum(node.get(name, 0.0) for node in alive) for name in names))


def _main() -> None:
    told: dict[str, object]
    try:
        told = asdict(_look(sys.argv[1] or None))
    except RayorchError as error:
        told = {"error": str(error)}
    print(f"\n{_MARK}{json.dumps(told)}", flush=True)


if __name__ == "__main__":
    _main()
