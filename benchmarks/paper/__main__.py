"""The paper's experiments: `python -m benchmarks.paper comparison|scaling|ablation|failure|all`.

Each is simulated at the paper's scale; docs/paper.md is made anew, with what `make bench` has
measured. `--measure` runs our reduced version for real first, and wants a quiet machine.
`page` makes the page alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.page import RESULTS, saved, write

LIMIT_S = 600.0
# Workload and systems of our reduced version.
REDUCED = {
    "comparison": ("w2", ["ours", "raydata", "daft"]),
    "scaling": ("w4", ["ours@read_workers=64", "ours@read_workers=4"]),
    "ablation": ("ablation", ["ours:shape=document", "ours:policy=unordered", "ours"]),
}


def _measure(name: str, rounds: int) -> None:
    from benchmarks.rounds import measured

    workload, systems = REDUCED[name]
    measured(workload, {}, systems, rounds, LIMIT_S, RESULTS)


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=[*EXPERIMENTS, "all", "page"])
    parser.add_argument("--measure", action="store_true", help="run our reduced version, too")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args(arguments)
    names = [name for name in EXPERIMENTS if asked.what in (name, "all")]
    for name in names:
        if asked.measure and name in REDUCED:
            _measure(name, asked.rounds)
        began = time.process_time()
        rows = EXPERIMENTS[name]()
        print(f"{name}: {time.process_time() - began:.1f} s of CPU", flush=True)
        for row in rows:
            print(f"  {row.what:<32} published {row.published:<34} simulated {row.simulated}")
        saved({name: rows})
    write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
