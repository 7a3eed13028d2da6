"""What `simulate` can be asked for. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any

from rayorch_prefect.cli.simulation_words import seconds
from rayorch_prefect.errors import UsageError


def add_simulate(commands: Any) -> None:
    """The subcommand's arguments."""
    parser = commands.add_parser(
        "simulate",
        help="what a run would take, by the same scheduler under a virtual clock",
        description="Simulate documents through stages. Times are such as 50ms or 1.2s.",
        epilog="docs/simulator.md has examples.",
    )
    for name, metavar, text in _TEXTS:
        more: dict[str, Any] = {"required": True} if name == "--children" else {}
        if name == "--stage":
            more = {"action": "append", "default": []}
        parser.add_argument(name, metavar=metavar, help=text, **more)
    parser.add_argument(
        "--policy", default="fifo", metavar="NAMES", help="such as fifo,canary (default fifo)"
    )
    for name, default, text in _NUMBERS:
        more = {} if default is None else {"default": default}
        parser.add_argument(name, type=int, metavar="N", help=text, **more)
    parser.add_argument(
        "--regroup", type=_time, default=0.0, metavar="TIME", help="what a global regroup takes"
    )
    parser.add_argument("--ideal", action="store_true", help="messages and the driver cost nothing")
    parser.add_argument("--json", action="store_true", help="figures as JSON, with all stages")


def _time(text: str) -> float:
    try:
        return seconds(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_TEXTS = (
    (
        "--stage",
        "NAME:KEY=VALUE,...",
        "a stage, in order; keys: level (document, range or page), batch, workers, call, row, "
        "child, sigma, tail (1%%x20), rowwise, linger",
    ),
    (
        "--children",
        "FROM",
        "FILE.csv, lognormal:MEDIAN,SIGMA,N[,MAX] or manifest:URI_OR_FILE of a night",
    ),
    ("--from-metrics", "FILE", "stages as measured: the JSON that `run --summary` wrote"),
    ("--compare", "SHAPES", "whole-document, global-regroup or both, beside lineage"),
    (
        "--poison",
        "N:PAGE[@STAGE]",
        "the first, random or last page of the N (or 5%%) largest documents is a GroupFailure",
    ),
    (
        "--sweep",
        "[STAGE.]workers=N,...",
        "the wall by workers (or batch) of a stage; without a name, of the busiest one",
    ),
    ("--svg", "FILE", "draw the runs"),
    ("--png", "FILE", "draw the runs (wants the extra `pictures`)"),
)
_NUMBERS = (
    ("--seed", 0, "of all that is drawn (default 0)"),
    ("--step", None, "pages of a range (default 16)"),
    ("--batches-at-worker", 2, "batches that a worker holds (default 2)"),
    ("--microbatch-size", None, "documents admitted at a time (default: all)"),
    ("--max-active-microbatches", 2, "such slices at a time (default 2)"),
)
