"""A Ray of one run's own, and what its object store took."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from typing import Any

import ray

from benchmarks.workloads import MIB, Workload

SAMPLED_EVERY_S = 0.1
CPUS = 8
NUM_CPUS = 0.01
"""CPUs that a worker reserves: the pools are of the workload's size, not of the machine's."""

_COUNTERS = {
    "spilled_mib": "spilled_bytes_total",
    "restored_mib": "restored_bytes_total",
    "store_peak_mib": "object_store_bytes_used",
    "on_disk_mib": "object_store_bytes_fallback",
}


class OwnRay:
    """Started here, ended with this process; its temporary folder is the runner's to remove."""

    def __init__(self, workload: Workload, folder: str) -> None:
        store = workload.store_mib * MIB or None
        ray.init(
            num_cpus=CPUS,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
            object_store_memory=store,
        )
        self._peaks = dict.fromkeys(_COUNTERS, 0.0)
        self._sampled = store is not None
        if self._sampled:
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._sample()
            time.sleep(SAMPLED_EVERY_S)

    def _sample(self) -> None:
        # Ray's own types are missing here.
        internal: Any = importlib.import_module("ray._private.internal_api")
        untyped: Any = ray
        node = untyped.nodes()[0]
        address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
        told = internal.node_stats(address, port, include_memory_info=False).store_stats
        for name, counter in _COUNTERS.items():
            self._peaks[name] = max(self._peaks[name], getattr(told, counter) / MIB)

    def store(self) -> dict[str, Any]:
        """MiB by the raylet's own counters, under "store"; nothing where no size was asked for."""
        if not self._sampled:
            return {}
        self._sample()
        return {"store": {name: round(value, 1) for name, value in self._peaks.items()}}
