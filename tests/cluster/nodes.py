"""A Ray cluster of two nodes on this machine, until its standard input is closed.

Each line that it reads is done: `kill` ends the second node as if its machine had died, `drain`
takes it away in order, `add` puts a new second node there. It answers with the same word.

`patient` as its argument has a node that is slow to answer, on a busy machine, not taken for dead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster

MEMORY = 100 * 1024**2
# A dead node is noticed within a second or two.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 2,
}
# One whose process has ended refuses the connection, so that it is noticed as soon.
PATIENT = {
    **QUICK,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 4,
}
TRIES = 5
PREEMPTION = 2


def main(checks: Mapping[str, int]) -> None:
    """Prints the cluster's address when both nodes are there."""
    common: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": MEMORY,
        "include_dashboard": False,
    }
    head = {**common, "resources": {"first": 1}, "_system_config": dict(checks)}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    second = {**common, "resources": {"second": 1}, "labels": {"region": "far"}}
    try:
        node = added(cluster, second)
        print(cluster.address, flush=True)
        for line in sys.stdin:
            match line.strip():
                case "kill":
                    cluster.remove_node(node, allow_graceful=False)
                case "drain":
                    drain(cluster, node)
                case "add":
                    node = added(cluster, second)
            print(line.strip(), flush=True)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def added(cluster: Cluster, second: dict[str, Any]) -> Any:
    """Another second node; on a busy machine one may not be up within Ray's own time limit."""
    for _ in range(TRIES - 1):
        try:
            return cluster.add_node(**second)
        except Exception as error:
            print(f"a node did not come up: {error!r}", file=sys.stderr, flush=True)
            for node in list(cluster.worker_nodes):
                cluster.remove_node(node, allow_graceful=False)
    return cluster.add_node(**second)


def drain(cluster: Cluster, node: Any) -> None:
    """Ray lets the node go at once, as where a spot machine is taken away."""
    client = GcsClient(address=cluster.address)
    client.drain_node(node.node_id, PREEMPTION, "preempted", 0)


if __name__ == "__main__":
    main(PATIENT if sys.argv[1:] == ["patient"] else QUICK)
