"""`make bench`: every workload against its peers, or those that ARGS names.

make bench ARGS="w1 --rounds 3"
make bench ARGS="w2 --systems ours,loop,daft:runner=native --set pages=600"
make bench ARGS="w7 --set pdfs=FOLDER"
make bench ARGS=table          # docs/benchmarks.md from the results
make bench ARGS=driver         # what a page Grain costs the driver
make bench ARGS=rows           # async rows in flight against their bound
make bench ARGS=row_stop       # how soon a busy worker is told to skip rows
make bench ARGS=ten_million    # the driver's memory over 100 microbatches
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import concurrent_rows, driver_cost, row_stop, ten_million
from benchmarks.one import pairs

SMALL, LARGE = 80_000, 1_000_000
_PEERS = "rayorch,raydata,daft,pool,prefect"
SYSTEMS = {
    "w1": f"ours,loop,{_PEERS}",
    "w2": f"ours,loop,{_PEERS}",
    "w3": "ours,ours:policy=canary,ours@page=none,ours:policy=canary@page=none,ours@page=random,"
    "ours:policy=canary@page=random,ours@page=last,ours:policy=canary@page=last",
    "w4": "ours@read_workers=64,ours@read_workers=4,loop@read_workers=64,loop@read_workers=4,"
    "rayorch@read_workers=64,rayorch@read_workers=4",
    "w4_fine": "ours,loop,rayorch,raydata",
    "w6": f"ours,loop,rayorch:window=8:active=2,{_PEERS}",
    "w6_big": "ours,loop,rayorch,daft,pool",
    "w7": f"sequential,ours,loop,{_PEERS}",
    "w8": "engine,night",
    "ablation": "ours:shape=document,ours:policy=unordered,ours,ours:shape=document@batch=64,"
    "ours:policy=unordered@batch=64,ours@batch=64",
}
LIMIT_S = 600.0


def driver(rounds: int) -> None:
    """What a page Grain costs the driver, and whether that grows with the microbatch."""
    ratios: list[float] = []
    for _ in range(rounds):
        small, large = driver_cost.measured_apart(SMALL), driver_cost.measured_apart(LARGE)
        ratios.append(large["us"] / small["us"])
        slope = (large["bytes"] * LARGE - small["bytes"] * SMALL) / (LARGE - SMALL)
        for one in (small, large):
            print(f"{one['pages']:>9,.0f} pages: {one['us']:.2f} us of driver CPU a page Grain")
        print(f"          memory slope between them: {slope:.0f} B a page Grain")
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    print(f"cost at {LARGE:,} over {SMALL:,}: {statistics.median(ratios):.2f} ({spread})")


def _table(rounds: int) -> None:
    from benchmarks import table

    del rounds
    table.write()


def _rows(rounds: int) -> None:
    del rounds
    concurrent_rows.main()


def _row_stop(rounds: int) -> None:
    del rounds
    row_stop.main()


def _ten_million(rounds: int) -> None:
    del rounds
    ten_million.main()


OTHERS: dict[str, Callable[[int], None]] = {
    "driver": driver,
    "rows": _rows,
    "row_stop": _row_stop,
    "ten_million": _ten_million,
    "table": _table,
}


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "make bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*SYSTEMS, *OTHERS]
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", help="NAME[:option=value...][@setting=value...],...")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one run")
    parser.add_argument("--results", type=Path, help="folder (default: benchmarks/results)")
    found = parser.parse_args(arguments)
    for name in found.what:
        if name not in names:
            parser.error(f"there is no {name}; expected some of {', '.join(names)}")
    return found


def _compare(name: str, asked: argparse.Namespace) -> None:
    # psutil and the peers are needed here only.
    from benchmarks import rounds, table

    systems = (asked.systems or SYSTEMS[name]).split(",")
    results = asked.results or table.RESULTS
    print(f"{name}: {', '.join(systems)}", flush=True)
    settings = pairs(asked.settings)
    found = rounds.measured(name, settings, systems, asked.rounds, asked.limit, results)
    print(table.section(found), flush=True)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 2 if something was asked for that there is not."""
    asked = _parsed(arguments)
    everything = [name for name in (*SYSTEMS, *OTHERS) if name not in ("w7", "table")]
    for name in asked.what or everything:
        try:
            if name in OTHERS:
                OTHERS[name](asked.rounds)
            else:
                _compare(name, asked)
        except (ValueError, ImportError) as error:
            print(f"make bench: {name}: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
