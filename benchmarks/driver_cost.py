"""What a page Grain costs the driver: scheduler, stored values and messages, without Ray.

A backend that answers at once stands for the workers, so that nothing but the driver's own work
is measured. Documents have long-tailed page counts; pages are read in batches of 64 that mix them.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.core.runs import Absent
from rayorch_prefect import F, program, stage
from rayorch_prefect.execution.backend import (
    BackendMessage,
    BatchReply,
    TakeBackAnswer,
    WorkerIsReady,
)
from rayorch_prefect.execution.batch import Fetch
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.messages import (
    BatchMessage,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)
from rayorch_prefect.execution.parent import no_references
from rayorch_prefect.execution.rows import describe_rows
from rayorch_prefect.model.events import Bar
from rayorch_prefect.scheduler.credits import Bound

MEAN_PAGES = 47
MOST_PAGES = 427
CHUNK_ROWS = 64
CHUNK = b"x" * 500
BOUND = Bound(bytes=4 << 30)  # an Engine has one


_render = stage(Absent, replicas=4, batch_size=16)()
_read = stage(Absent, replicas=4, batch_size=64)()
_assemble = stage(Absent, replicas=4, batch_size=16)()


@program(version="1")
def pages_of_documents(document: Any) -> Any:
    """document -> pages -> document, as the overhead workload of the yardstick."""
    return _assemble(document, F.reduce(_read(F.expand(_render(document), domain="page"))))


def page_counts(pages: int) -> list[int]:
    """Long-tailed page counts that add up to `pages`."""
    pick = random.Random(1)
    counts: list[int] = []
    left = pages
    while left:
        count = min(left, MOST_PAGES, max(1, round(pick.lognormvariate(0, 1.2) * MEAN_PAGES / 2)))
        counts.append(count)
        left -= count
    return counts


class InstantBackend:
    """Answers every batch, in the order they were sent."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = iter(counts)
        self._workers = 0
        self.told: deque[BackendMessage] = deque()

    @property
    def fetch(self) -> Fetch:
        """There are no stored objects."""
        return no_references

    def start_worker(self, pool: int) -> int:
        """At once."""
        self._workers += 1
        self.told.append(WorkerIsReady(self._workers - 1, pool))
        return self._workers - 1

    def hand_over(self, worker: int) -> None: ...

    def send(self, worker: int, batch: int, message: BatchMessage, together: int = 1) -> None:
        """Answer with chunks of the right shape."""
        output = self._lists(message) if message.call == 0 else _values(message)
        self.told.append(BatchReply(worker, batch, RowsReply(message.rows, (output,), {}, 0)))

    def _lists(self, message: BatchMessage) -> ReturnedOutput:
        shapes = tuple(next(self._counts) for _ in range(message.rows))
        chunks = [
            ReturnedChunk(min(CHUNK_ROWS, count - first), CHUNK)
            for count in shapes
            for first in range(0, count, CHUNK_ROWS)
        ]
        return ReturnedOutput(tuple(chunks), shapes, None)

    def take_back(self, worker: int, batch: int) -> None:
        """Every batch has started."""
        self.told.append(TakeBackAnswer(worker, batch, taken=False))

    def tell_bars(self, worker: int, bars: Sequence[Bar]) -> None:
        """Nothing is barred here."""

    def forget_bar(self, worker: int, bar: Bar) -> None:
        """Nothing is barred here."""

    def look(self, worker: int, batch: int) -> None:
        """Nothing takes long here."""

    def retire(self, worker: int) -> None:
        """Nobody wears out here."""

    def discard(self, worker: int) -> None:
        """Nobody dies here."""

    def keep(self, data: Any) -> Any:
        """Nothing is large here."""
        return data

    def unstored(self, returned: Sequence[Any]) -> str | None:
        """Nothing is large here."""
        return None


def _values(message: BatchMessage) -> ReturnedOutput:
    borders = (0, *message.cuts, message.rows)
    sizes = [end - first for first, end in pairwise(borders)]
    return ReturnedOutput(tuple(ReturnedChunk(n, CHUNK) for n in sizes), None, None)


def measure(pages: int) -> dict[str, float]:
    """CPU microseconds and peak bytes of the driver's process a page Grain."""
    counts = page_counts(pages)
    backend = InstantBackend(counts)
    driver = Driver(pages_of_documents.plan, backend, time.time, bound=BOUND)
    ended: list[object] = []
    described = describe_rows(driver.plan, counts)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    driver.start()
    driver.submit(counts, [""] * len(counts), described, ended.append)
    while backend.told:
        driver.receive(backend.told.popleft())
    cpu = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert len(ended) == len(counts), "a document did not end"
    return {"pages": pages, "us": cpu / pages * 1e6, "bytes": peak * 1024 / pages}


def measured_apart(pages: int) -> dict[str, float]:
    """`measure` in a process of its own, so that one size's peak is not another's."""
    answer = subprocess.run(
        [sys.executable, "-m", "benchmarks.driver_cost", str(pages)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
