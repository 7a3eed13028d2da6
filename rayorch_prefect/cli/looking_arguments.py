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
        "only, and needs neither Prefect nor Ray.",
        epilog="Exit status: 0; 1 if something has failed or, with --source, is left, or the store "
        "refused; 2 for what was asked wrongly, a source prefix without objects too.",
    )
    add_program(parser)
    parser.add_argument("--destination", required=True, metavar="S3_URL", help="s3://bucket/out/")
    parser.add_argument(
        "--source",
        metavar="S3_URL",
        help="the sources to hold against it: which are left, and changed since; what the ledger "
        "has of others is counted as not there",
    )
    _add_working_dir(parser)
    _add_json(parser, "all of it as JSON, with every source that is left")


def _add_working_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--working-dir", metavar="DIR", help="folder of the program's modules")


def _add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)
