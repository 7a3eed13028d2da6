"""`make bench`: the driver's cost a page Grain and its growth; rows in flight and their bound."""

from __future__ import annotations

import statistics

from benchmarks import concurrent_rows
from benchmarks.driver_cost import measured_apart

SMALL, LARGE = 80_000, 1_000_000
ROUNDS = 3


def main() -> None:
    """Print the figures, and the ratio that says whether the cost grows."""
    ratios: list[float] = []
    for _ in range(ROUNDS):
        small, large = measured_apart(SMALL), measured_apart(LARGE)
        ratios.append(large["us"] / small["us"])
        slope = (large["bytes"] * LARGE - small["bytes"] * SMALL) / (LARGE - SMALL)
        for one in (small, large):
            print(f"{one['pages']:>9,.0f} pages: {one['us']:.2f} us of driver CPU a page Grain")
        print(f"          memory slope between them: {slope:.0f} B a page Grain")
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    print(f"cost at {LARGE:,} over {SMALL:,}: {statistics.median(ratios):.2f} ({spread})")
    concurrent_rows.main()


if __name__ == "__main__":
    main()
