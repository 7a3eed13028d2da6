"""`make demo`: the nightly job on sample PDFs, with every service on this machine.

Works in `.demo/` below the current directory, which is emptied first: `out/` (a copy of what was
published, and the manifest), `summary.json`, `demo.log`, and `prefect/`, Prefect's home.

Exit status: 0 if every source ended as it should, 1 if not or if a service did not start, 2 for
a wrong argument or a missing extra, 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rayorch_prefect.errors import RayorchError, UsageError

FOLDER = ".demo"
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_LOCK = "lock"
_LOCAL = "127.0.0.1,localhost"
# What the user has set for services of their own must not reach the demo's.
_OF_THE_USER = ("PREFECT_", "AWS_", "RAY_ADDRESS", "RAY_NAMESPACE")
_OURS = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo in the current directory; the exit status."""
    keep = _parser().parse_args(arguments).keep
    folder = Path(FOLDER).resolve()
    try:
        _end_on_sigterm()
        with _claimed(folder), _apart(folder / "demo.log") as terminal:
            _set_environment(folder)
            # Imported late: Prefect and Ray read the environment when they are imported.
            from rayorch_prefect.cli.demo_run import run_demo

            return run_demo(folder, keep, terminal)
    except KeyboardInterrupt:
        return _said("interrupted; nothing is left running", EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        hint = f"{error.name} is not installed: make demo installs it, or the extra `demo`"
        return _said(hint, EXIT_USAGE)
    except UsageError as error:
        return _said(str(error), EXIT_USAGE)
    except RayorchError as error:
        return _said(f"{type(error).__name__}: {error}; log: {folder / 'demo.log'}", EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="demo", description="Run the nightly job on sample PDFs, all on this machine."
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the servers up afterwards, until Ctrl-C"
    )
    return parser


def _said(text: str, status: int) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return status


def _end_on_sigterm() -> None:
    """Let SIGTERM unwind everything as Ctrl-C does, in a background job too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The emptied folder, for one demo at a time. Raises UsageError if another one runs there."""
    folder.mkdir(exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another demo uses {folder}: end it first, or start this one in another directory"
            ) from None
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
        yield


@contextmanager
def _apart(log: Path) -> Iterator[TextIO]:
    """The terminal for our own lines; whatever else this process writes goes to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    with log.open("wb", buffering=0) as file, os.fdopen(os.dup(1), "w") as terminal:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield terminal
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for target, saved in enumerate(kept, start=1):
                os.dup2(saved, target)
                os.close(saved)


def _set_environment(folder: Path) -> None:
    for name in list(os.environ):
        if name.startswith(_OF_THE_USER):
            del os.environ[name]
    os.environ.update(_OURS, PREFECT_HOME=str(folder / "prefect"))
    # A proxy of the environment has no way to this machine's own addresses.
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), _LOCAL)))


if __name__ == "__main__":
    sys.exit(main())
