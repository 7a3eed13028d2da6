"""Ten million page Grains over 100 microbatches: `python -m benchmarks.ten_million [PAGES]`.

The driver's work alone, as in `driver_cost`. A driver that lives for many nights must not keep what
a microbatch leaves behind: its memory after the last one is held against that after the tenth.
"""

from __future__ import annotations

import gc
import resource
import sys
import time

from benchmarks.driver_cost import InstantBackend, page_counts, pages_of_documents
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.execution.rows import describe_rows

MICROBATCHES, PAGES = 100, 10_000_000
COMPARED_WITH = 10
MOST_GROWTH = 1.1


def resident_mib() -> float:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def measured(pages: int, microbatches: int = MICROBATCHES) -> list[float]:
    """MiB resident after each microbatch has ended and been let go."""
    counts = page_counts(pages // microbatches)
    backend = InstantBackend(counts * microbatches)
    driver = Driver(pages_of_documents.plan, backend, time.time)
    driver.start()
    found: list[float] = []
    ended = 0

    def on_parent(_: object) -> None:
        nonlocal ended
        ended += 1

    for number in range(microbatches):
        described = describe_rows(driver.plan, counts)
        driver.submit(counts, [""] * len(counts), described, on_parent)
        while backend.told:
            driver.receive(backend.told.popleft())
        assert ended == len(counts) * (number + 1), "a document did not end"
        gc.collect()
        found.append(resident_mib())
    return found


def main(pages: int = PAGES) -> None:
    """Print the figures and the verdict."""
    begin = time.process_time()
    found = measured(pages)
    cpu = time.process_time() - begin
    growth = found[-1] / found[COMPARED_WITH - 1]
    print(
        f"{pages:,} page Grains over {MICROBATCHES} microbatches: "
        f"{found[COMPARED_WITH - 1]:.1f} MiB after the tenth, {found[-1]:.1f} MiB at the end: "
        f"{growth:.3f} x (at most {MOST_GROWTH}); {cpu / pages * 1e6:.2f} us a Grain"
    )
    if growth > MOST_GROWTH:
        sys.exit(f"the driver keeps too much: {growth:.3f} x is more than {MOST_GROWTH}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
