"""A Ray cluster of two nodes on this machine, until its standard input is closed."""

from __future__ import annotations

import sys
from typing import Any

from ray.cluster_utils import Cluster

MEMORY = 100 * 1024**2


def main() -> None:
    """Prints the cluster's address when both nodes are there."""
    common: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": MEMORY,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args={**common, "resources": {"first": 1}})
    try:
        cluster.add_node(**common, resources={"second": 1}, labels={"region": "far"})
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
