"""`rayorch-prefect`: run a program as a night, look at what it left, simulate or replay a run.

Exit status: 0 if the night ended Completed (PartiallyCompleted too), 1 if it failed or a store,
cluster or Prefect server refused (a bucket that is not there too), 2 for what was asked wrongly: an
argument, a name that no store takes, a Program that is none, a key or prefix without sources; 143
if SIGTERM ended it, 130 if Ctrl-C did or it was cancelled through Prefect. `status` ends with 1
where something has failed or is left, `doctor` where it finds a problem.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, cast

from rayorch_prefect.cli.exits import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    status_of_error,
)
from rayorch_prefect.cli.looking_arguments import (
    add_destination,
    add_doctor,
    add_json,
    add_program,
    add_report,
    add_status,
)
from rayorch_prefect.cli.simulate_arguments import add_simulate
from rayorch_prefect.cli.streams import printed_on_stderr
from rayorch_prefect.errors import RayorchError


class _Parser(argparse.ArgumentParser):
    """Says one line about a wrong argument, not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"{parser.prog} {version('rayorch-prefect')}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    asked = _asked(arguments)
    try:
        status = _COMMANDS[asked.command](asked)
        sys.stdout.flush()
        return status
    except RayorchError as error:
        one_line = " ".join(str(error).split())
        print(f"rayorch-prefect {asked.command}: {one_line}", file=sys.stderr)
        return status_of_error(error)
    except BrokenPipeError:
        # Whoever read has had enough; what is left must not be flushed to it at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("rayorch-prefect: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _asked(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser, commands = _parser()
    asked, unknown = parser.parse_known_args(arguments)
    if unknown:
        # argparse's own error would name neither the command nor its help.
        commands[asked.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return asked


def _run(asked: argparse.Namespace) -> int:
    # Imported late: Prefect and Ray take seconds that a wrong argument need not cost.
    from rayorch_prefect.cli.run import run

    return run(asked)


def _plan(asked: argparse.Namespace) -> int:
    from rayorch_prefect.binding.loading import load_program

    with printed_on_stderr(asked.json):
        plan = load_program(asked.program).plan
    print(json.dumps(plan.as_data(), indent=1) if asked.json else plan.describe())
    return 0


def _simulate(asked: argparse.Namespace) -> int:
    from rayorch_prefect.cli.simulate import run

    return run(asked)


def _replay(asked: argparse.Namespace) -> int:
    from rayorch_prefect.cli.replay import replay

    return replay(asked)


def _status(asked: argparse.Namespace) -> int:
    from rayorch_prefect.cli.status import status

    return status(asked)


def _report(asked: argparse.Namespace) -> int:
    from rayorch_prefect.cli.report import report

    return report(asked)


def _doctor(asked: argparse.Namespace) -> int:
    from rayorch_prefect.cli.doctor import doctor

    return doctor(asked)


_COMMANDS = {
    "run": _run,
    "retry-failed": _run,
    "status": _status,
    "report": _report,
    "doctor": _doctor,
    "plan": _plan,
    "simulate": _simulate,
    "replay": _replay,
}


def _parser() -> tuple[_Parser, Mapping[str, _Parser]]:
    parser = _Parser(
        prog="rayorch-prefect",
        description="Publish S3 objects through a lineage-controlled program on Ray and Prefect.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and leave")
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_COMMANDS))
    _add_run(commands)
    _add_retry_failed(commands)
    add_status(commands)
    add_report(commands)
    add_doctor(commands)
    plan = commands.add_parser("plan", help="print a program's compiled Plan")
    add_program(plan)
    add_json(plan, "Domains, Ports, Calls, pools and reduces as JSON")
    add_simulate(commands)
    _add_replay(commands)
    return parser, commands.choices


def _add_replay(commands: argparse._SubParsersAction[_Parser]) -> None:
    replay = commands.add_parser(
        "replay",
        help="run a recording's events again, and tell what became of a source row",
        description="What a run's scheduler was told, from a file that --record or record= has "
        "made; nothing is computed, and no cluster or store is needed.",
    )
    replay.add_argument("file", metavar="FILE", help="the recording")
    replay.add_argument(
        "--story",
        nargs="+",
        metavar=("KEY", "PATH"),
        help="tell the life of this source row, or of what is at the ordinal path (3/7) below it",
    )
    replay.add_argument(
        "--until", type=_at_least(0), metavar="N", help="stop before step N, and show what is open"
    )
    replay.add_argument(
        "--check",
        action="store_true",
        help="hold each answer, and the state at the end, against what was recorded; exit status "
        "1 at the first that differs",
    )


_SERVICES = (
    "S3 by the Prefect block that is named, else by boto3's chain and AWS_ENDPOINT_URL; Ray by "
    "RAY_ADDRESS, else a local one; Prefect by PREFECT_API_URL or profile, else a local server. "
    "What is not said here, Prefect's settings say (PREFECT_INTEGRATIONS_RAYORCH_*, "
    "[integrations.rayorch] in prefect.toml), else the default."
)


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:
    run = commands.add_parser(
        "run", help="run a program over all sources under an S3 prefix", description=_SERVICES
    )
    _add_night(run)


def _add_retry_failed(commands: argparse._SubParsersAction[_Parser]) -> None:
    retry = commands.add_parser(
        "retry-failed",
        help="run, and also what failed for good before or was published with gaps",
        description=f"The same as run --retry-failed, with the same options. {_SERVICES}",
    )
    _add_night(retry)
    retry.set_defaults(retry_failed=True)


def _add_night(run: argparse.ArgumentParser) -> None:
    add_program(run)
    run.add_argument(
        "--source", required=True, metavar="PLACE", help="s3://bucket/in/ or s3-location/NAME"
    )
    add_destination(run)
    _add_numbers(run)
    _add_choices(run)
    _add_ends(run)
    _add_environment(run)


def _add_numbers(run: argparse.ArgumentParser) -> None:
    for name, default, minimum, text in (
        ("--microbatch-size", 64, 1, "sources per child flow run"),
        ("--max-active-microbatches", 2, 1, "child flow runs at a time"),
        ("--upload-workers", 4, 1, "uploads in flight per microbatch"),
        ("--upload-group", 1, 1, "parents per upload task run, closed after 1 s"),
        ("--upload-tries", 4, 1, "tries of an upload while the store is unavailable"),
        ("--parent-events", 1000, 0, "Prefect events of published sources, and of failed ones"),
        ("--lease-seconds", 60, 4, "silence after which another run may take over"),
    ):
        run.add_argument(
            name,
            type=_at_least(minimum),
            metavar="N",
            help=f"{text} (default {default})",
        )


def _add_choices(run: argparse.ArgumentParser) -> None:
    for name, text in (
        ("--dry-run", "print what would run, be skipped and count again; start nothing"),
        ("--retry-failed", "run again what failed for good before, or was published with gaps"),
        ("--force", "run every source, whatever the ledger says is done"),
        ("--allow-empty", "a source prefix without objects is no error"),
    ):
        run.add_argument(name, action="store_true", help=text)
    run.add_argument(
        "--upload-runner",
        choices=("threads", "ray"),
        help="upload task runs in threads of this process (default) or on Ray workers",
    )
    run.add_argument(
        "--upload-task",
        metavar="MODULE:ATTRIBUTE",
        help="a Prefect task of yours that uploads each whole parent in place of ours",
    )
    run.add_argument(
        "--summary", metavar="FILE", help="write the night's numbers, its stages' too, as JSON"
    )
    add_json(
        run,
        "how it ended as one JSON object, alone on standard output (in a dry run what would be "
        "done); all else goes to standard error",
    )
    run.add_argument(
        "--policy",
        choices=("fifo", "canary", "longest_first", "unordered", "single_parent"),
        help="which ready rows go next (default fifo); canary: few of a source until some are back",
    )
    run.add_argument(
        "--stage-log-level",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF"),
        help="what stages log from this level on is in their microbatch's log at Prefect (default "
        "WARNING)",
    )
    run.add_argument(
        "--limit",
        type=_at_least(1),
        metavar="N",
        help="run at most N sources; the others count as not processed",
    )
    run.add_argument(
        "--only",
        action="append",
        metavar="KEY",
        help="only this source, by its whole key or s3:// URI (may be given again)",
    )


def _add_ends(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--failure-policy",
        metavar="POLICY",
        help='failed sources that are tolerated (PartiallyCompleted), "3" or "5%%" (default 0); '
        '"fail-fast" or "stop=KIND" (or a type) ends the night at the first; several with commas',
    )
    run.add_argument(
        "--hook",
        action="append",
        type=_hook,
        dest="hooks",
        metavar="NAME=MODULE:ATTRIBUTE",
        help="call this function on_parent_published, on_parent_failed or on_microbatch_end (may "
        "be given again)",
    )


def _hook(text: str) -> tuple[str, str]:
    name, found, function = text.partition("=")
    if not found or not function:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MODULE:ATTRIBUTE")
    return name, function


def _add_environment(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="the GCS of the Ray cluster, host:6379 or ray-cluster/NAME (default RAY_ADDRESS, else "
        "a local Ray)",
    )
    run.add_argument(
        "--record",
        metavar="FOLDER",
        help="record every event of the run, but no value, in a new file there (see replay)",
    )
    run.add_argument(
        "--working-dir",
        metavar="DIR",
        help="folder of the program's modules: Ray brings it to its workers",
    )
    run.add_argument(
        "--runtime-env",
        type=_runtime_env,
        metavar="JSON",
        help="Ray's runtime_env of the workers: a JSON file, or the JSON itself",
    )


def _runtime_env(text: str) -> dict[str, Any]:
    inline = text.lstrip().startswith("{")
    try:
        found = json.loads(text if inline else Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a JSON object nor a file to read ({error.strerror})"
        ) from None
    except ValueError as error:
        where = "it" if inline else text
        raise argparse.ArgumentTypeError(f"{where} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(
            f"{text} holds a {type(found).__name__}; expected a JSON object like Ray's runtime_env"
        )
    return cast(dict[str, Any], found)


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {minimum} up")
        return int(text)

    return number


if __name__ == "__main__":
    sys.exit(main())
