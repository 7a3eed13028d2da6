"""What the commands that only look can be asked for. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from typing import Any


def add_program(parser: argparse.ArgumentParser) -> None:
    """The argument that names a Program."""
    parser.add_argument(
        "--program",
        required=True,
        metavar="MODULE:ATTRIBUTE",
        help="such as rayorch_prefect.workloads.documents:documents",
    )


def add_status(commands: Any) -> None:
    """The subcommand's arguments."""
    parser = commands.add_parser(
        "status",
        help="what a destination's ledger says: published, failed, left",
        description="How each source ended last, by the ledger of this program and version; reads "
        "only, and needs no Ray, and Prefect only where a block is named.",
        epilog="Exit status: 0; 1 if something has failed or, with --source, is left, or the store "
        "refused; 2 for what was asked wrongly, a source prefix without objects too.",
    )
    add_program(parser)
    add_destination(parser)
    parser.add_argument(
        "--source",
        metavar="PLACE",
        help="the sources to hold against it: which are left, and changed since; what the ledger "
        "has of others is counted as not there",
    )
    _add_working_dir(parser)
    add_json(parser, "all of it as JSON, with every source that is left")


def add_report(commands: Any) -> None:
    """The subcommand's arguments."""
    parser = commands.add_parser(
        "report",
        help="where the last night's manifest and report are, and its counts",
        description="The night whose files in the destination are the newest, or the one named; "
        "reads only, and needs no Ray, and Prefect only where a block is named.",
        epilog="Exit status: 0, whatever the night's counts; 1 if the store refused; 2 for what "
        "was asked wrongly, a destination without nights too.",
    )
    add_program(parser)
    add_destination(parser)
    parser.add_argument("--night", metavar="ID", help="the id of its flow run (default: the last)")
    _add_working_dir(parser)
    add_json(parser, "the same as JSON")


def add_doctor(commands: Any) -> None:
    """The subcommand's arguments."""
    parser = commands.add_parser(
        "doctor",
        help="whether a night would find what it needs here, and what to do if not",
        description="One line a check (ok, warning or problem): versions, memory, Ray by the "
        "setting ray_address or RAY_ADDRESS, Prefect by PREFECT_API_URL or profile, and the store.",
        epilog="Exit status: 0; 1 if there is a problem; 2 for what was asked wrongly.",
    )
    parser.add_argument(
        "--destination",
        metavar="PLACE",
        help="s3://bucket/out/ or s3-location/NAME: see which rights there are and what the store "
        "honours, by a few small objects under _rayorch/probe/ that are removed again",
    )
    parser.add_argument(
        "--start-ray",
        action="store_true",
        help="without RAY_ADDRESS, start a local Ray, as a night would, and end it",
    )
    add_json(parser, "the checks as JSON")


def add_destination(parser: argparse.ArgumentParser) -> None:
    """The place of the outputs."""
    parser.add_argument(
        "--destination", required=True, metavar="PLACE", help="s3://bucket/out/ or s3-location/NAME"
    )


def _add_working_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--working-dir", metavar="DIR", help="folder of the program's modules")


def add_json(parser: argparse.ArgumentParser, text: str) -> None:
    """The argument that asks for JSON; `text` says what is in it."""
    parser.add_argument("--json", action="store_true", help=text)
