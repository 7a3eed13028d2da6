"""How well an async stage keeps its places busy: `python -m benchmarks.concurrent_rows`.

Rows wait 50 ms in the median, with a tail to 2 s, as those of a model server do, and compute
nothing; 4 workers have 16 in flight each. The bound is what 64 places could do: greedy list
scheduling of the same times in the same order, the tail included. Also printed: the same in
closed batches of 64 rows on the same 64 places, each of which waits for its slowest row.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rayorch_prefect import Engine, program, stage

WORKERS, PLACES = 4, 16
ROWS, ROUNDS = 6_000, 3
MEDIAN_S, SPREAD, LONGEST_S = 0.05, 0.9, 2.0


async def ask(seconds: float) -> float:
    """A service that takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@program(version="1")
def asked(seconds: Any) -> Any:
    """One stage, one row each."""
    return stage(ask, concurrency=PLACES, replicas=WORKERS)(seconds)


def row_times(rows: int, seed: int) -> list[float]:
    """Seconds of each row, lognormal and cut at `LONGEST_S`."""
    pick = random.Random(seed)
    return [min(LONGEST_S, MEDIAN_S * pick.lognormvariate(0.0, SPREAD)) for _ in range(rows)]


def greedy_s(times: Sequence[float], places: int) -> float:
    """When the last row ends if each starts in order as soon as a place is free."""
    free = [0.0] * places
    for seconds in times:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def closed_s(times: Sequence[float], places: int) -> float:
    """The same in batches of `places` rows that wait for their slowest."""
    return sum(max(times[first : first + places]) for first in range(0, len(times), places))


def measured_s(engine: Engine, times: Sequence[float]) -> float:
    """Seconds from submitting the rows to the last parent."""
    begin = time.perf_counter()
    ended = [parent.value() for parent in engine.run(times)]
    took = time.perf_counter() - begin
    assert sorted(ended) == sorted(times), "an output is missing or wrong"
    return took


def main() -> None:
    """Print the share of the bound that was reached, round by round."""
    shares: list[float] = []
    with Engine(asked) as engine:
        measured_s(engine, row_times(640, seed=-1))
        for seed in range(ROUNDS):
            times = row_times(ROWS, seed)
            bound, before = greedy_s(times, WORKERS * PLACES), time.process_time()
            took = measured_s(engine, times)
            cpu = (time.process_time() - before) / ROWS * 1e6
            shares.append(bound / took)
            closed = bound / closed_s(times, WORKERS * PLACES)
            print(
                f"{ROWS / took:.0f} rows/s of {ROWS / bound:.0f} that {WORKERS * PLACES} places "
                f"could do: {shares[-1]:.3f}; closed batches at best {closed:.3f}; "
                f"{cpu:.0f} us of driver CPU a row",
                flush=True,
            )
    spread = f"{min(shares):.3f}-{max(shares):.3f}"
    print(f"share of the bound: {statistics.median(shares):.3f} ({spread})")


if __name__ == "__main__":
    main()
