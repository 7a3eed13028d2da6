"""A run on a Ray of its own whose memory holds 100 MB, with a document of 320 MB.

Prints a JSON line: the values, the bytes spilled, the most that was pinned, and the bound.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import ray
from ray._private.internal_api import node_stats

from rayorch_prefect import Engine, F, program, stage

STORE = 100_000_000
PAGE = 8_000_000


def pages_of(count: int) -> list[int]:
    return list(range(count))


def render(page: int) -> Any:
    return np.full(PAGE, page % 250, np.uint8)


def read(image: Any) -> int:
    return int(image.nbytes)


def bind(sizes: Any) -> list[int]:
    return [len(sizes), sum(sizes)]


@program
def documents(count: Any) -> Any:
    pages = F.expand(stage(pages_of)(count), domain="page")
    rendered = stage(render, batch_size=2, replicas=2)(pages)
    return stage(bind)(F.reduce(stage(read, batch_size=2)(rendered)))


class Watch:
    """The raylet's own counters, ten times a second."""

    def __init__(self) -> None:
        self.primary = 0
        self.spilled = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        node = ray.nodes()[0]  # type: ignore[no-untyped-call]
        while not self._end.wait(0.1):
            found: Any = node_stats(node["NodeManagerAddress"], node["NodeManagerPort"], False)  # type: ignore[no-untyped-call]
            self.primary = max(self.primary, found.store_stats.object_store_bytes_primary_copy)
            self.spilled = found.store_stats.spilled_bytes_total

    def end(self) -> None:
        self._end.set()
        self._thread.join()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=STORE, log_to_driver=False)
    watch = Watch()
    with Engine(documents) as engine:
        values = [parent.value() for parent in engine.run([40, 3])]
        bound = engine.bound.bytes
    watch.end()
    print(
        json.dumps(
            {
                "values": sorted(values, reverse=True),
                "spilled": watch.spilled,
                "primary": watch.primary,
                "bound": bound,
            }
        )
    )
