"""What the simulator predicts of our own runs, beside those runs.

`python -m benchmarks.predictions` wants a quiet machine. Each workload is run `--rounds` times; the
best wall counts, as whatever else runs can only make it longer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.simulated import predicted
from benchmarks.workloads import MAKERS, made
from rayorch_prefect.simulation.figures import Figures

LIMIT_S = 600.0
WITHIN = 0.05


@dataclass(frozen=True)
class Case:
    """A workload with settings, and the policy of both runs."""

    workload: str
    settings: dict[str, Any]
    policy: str = "fifo"

    @property
    def system(self) -> str:
        """As `benchmarks.one` names it."""
        return "ours" if self.policy == "fifo" else f"ours:policy={self.policy}"


CASES = {
    "w2": Case("w2", {}),
    "w3": Case("w3", {}),
    "w3_canary": Case("w3", {}, "canary"),
    "w4_4": Case("w4", {"read_workers": 4, "pages": 2560}),
    "w4_64": Case("w4", {"read_workers": 64}),
}


def measured(case: Case, rounds: int) -> list[dict[str, Any]]:
    """Real runs, each in its own process and Ray. Raises RuntimeError for one that failed."""
    from benchmarks.rounds import one

    runs = [one(case.workload, case.settings, case.system, LIMIT_S) for _ in range(rounds)]
    for run in runs:
        if "error" in run:
            raise RuntimeError(f"{case.workload}: {run['error']}")
    return runs


def compared(case: Case, figures: Figures, runs: Sequence[dict[str, Any]]) -> tuple[str, float]:
    """A line of the table, and the prediction over the best wall."""
    best = min(runs, key=lambda run: float(run["wall_s"]))
    ratio = figures.wall_s / float(best["wall_s"])
    read = next(stage for stage in figures.stages if stage.stage == "read")
    settings = "".join(f" {key}={value}" for key, value in case.settings.items())
    cells = [
        f"{case.workload}{settings} {case.policy}",
        f"{figures.wall_s:.2f}",
        f"{float(best['wall_s']):.2f}",
        f"{ratio:.3f}",
        f"{figures.tail_s:.2f} / {float(best['tail_s']):.2f}",
        f"{read.calls:,} / {best['calls']['read']:,}",
        f"{read.rows:,} / {best['rows']['read']:,}",
        f"{float(best.get('others_cores', 0.0)):.1f}",
    ]
    return "| " + " | ".join(cells) + " |", ratio


HEAD = (
    "| workload | predicted, s | measured (best), s | ratio | tail, s | read calls | pages read | "
    "other load, cores |\n| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main(arguments: Sequence[str]) -> int:
    """The exit status: 1 if a prediction is off by more than `WITHIN`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only-predict", action="store_true", help="run nothing")
    asked = parser.parse_args(arguments)
    there = [name for name, case in CASES.items() if case.workload in MAKERS]
    for name in asked.what:
        if name not in there:
            parser.error(f"there is no {name}; expected some of {', '.join(there)}")
    off = False
    if not asked.only_predict:
        print(HEAD, flush=True)
    for name in asked.what or there:
        case = CASES[name]
        figures = predicted(made(case.workload, case.settings), policy=case.policy)
        if asked.only_predict:
            print(f"{name}: {figures.wall_s:.3f} s, tail {figures.tail_s:.3f} s", flush=True)
            continue
        line, ratio = compared(case, figures, measured(case, asked.rounds))
        off |= abs(ratio - 1) > WITHIN
        print(line, flush=True)
    return int(off)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
