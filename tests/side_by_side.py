"""The tests in two pytest processes side by side, for `make test` and `make test-all`.

What is in BESIDE starts no Ray: it uses a core while the nights of all other tests wait, or waits
beside them. Each process keeps its own account of what failed last, so that `--last-failed`
works in both. With a path among the arguments there is one process, as if pytest were called.

The status is pytest's: of the first process that has any but 0 and 5, else 5 if neither found a
test, else 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BESIDE = (
    "binding/test_prefect_server.py",
    "binding/test_slots.py",
    "cli/test_display.py",
    "cli/test_main.py",
    "cli/test_replay.py",
    "cli/test_report.py",
    "cli/test_simulate.py",
    "packaging",
    "program",
    "replay",
    "scheduler",
    "simulation",
    "storage",
)
_NO_TEST = 5
# Ray gives its workers 15: what needs no Ray is to hold them up as little as the tests' own work.
_NICENESS = 10
# Without this, a process in which nothing had failed would take `--last-failed` for "all".
_PYTEST = (sys.executable, "-m", "pytest", "--last-failed-no-failures=none")


def main(arguments: Sequence[str]) -> int:
    """Run the tests; returns the exit status."""
    if any(not each.startswith("-") and Path(each.split("::")[0]).exists() for each in arguments):
        return subprocess.call([*_PYTEST, *arguments])
    beside = [path for name in BESIDE if Path(path := f"tests/{name}").exists()]
    others = [f"--ignore={path}" for path in beside]
    with tempfile.TemporaryFile() as said:
        second = subprocess.Popen(
            [*_PYTEST, "-o", "cache_dir=.pytest_cache/beside", *arguments, *beside],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: os.nice(_NICENESS),
        )
        try:
            first = subprocess.call([*_PYTEST, *arguments, *others])
        finally:
            # Ctrl-C reaches it, too, as it is in the terminal's group.
            ended = second.wait()
            said.seek(0)
            sys.stdout.write(f"\n{'=' * 20} beside: {', '.join(beside)} {'=' * 20}\n")
            sys.stdout.write(said.read().decode("utf-8", "replace"))
            sys.stdout.flush()
    return _status(first, ended)


def _status(*ends: int) -> int:
    bad = [end for end in ends if end not in (0, _NO_TEST)]
    return bad[0] if bad else min(ends)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
