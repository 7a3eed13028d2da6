"""`make versions`: a few tests with the lowest releases that pyproject.toml allows, and the newest.

The lowest are those of requirements/lowest.txt, in `.venv-lowest`; types are checked against them,
too. The newest are looked up; while `.venv` has them, `make test` has tested them. The same tests
run on Python 3.13, in `.venv-3.13`, where that is on PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("prefect", "ray", "prefect-ray")
# Imports, an Engine on real Ray, blocks and settings, a night that publishes and is shown.
FEW = (
    "tests/program",
    "tests/execution/test_versions.py",
    "tests/execution/test_engine.py",
    "tests/binding/test_blocks.py",
    "tests/binding/test_settings.py",
    "tests/binding/test_night.py::test_all_is_published_and_shown[moto]",
)
# Ray's older types leave some calls untyped, and have nothing to ignore where the newer ones do.
_OLDER_TYPES = ("--allow-untyped-calls", "--no-warn-unused-ignores")
_UV = Path(sys.executable).with_name("uv")


def main() -> int:
    """Test all of them; returns how many did not pass."""
    failed = [name for name, passes in _TRIED.items() if not passes()]
    for name in failed:
        print(f"versions: FAILED with the {name}")
    return len(failed)


def newest() -> bool:
    """The newest that the index has within the bounds of pyproject.toml."""
    if (there := _offered()) is None:
        print("versions: the index cannot be asked: it is not known whether .venv has the newest")
        return True
    newer = [f"{name}=={there[name]}" for name in NAMES if there[name] != version(name)]
    if not newer:
        told = ", ".join(f"{name} {version(name)}" for name in NAMES)
        print(f"versions: newest: {told}, which are those of .venv and of `make test`")
        return True
    lock = ROOT / "requirements" / "dev.txt"
    python = _environment("newest", sys.executable, lock)
    _run(_UV, "pip", "install", "--quiet", "--python", python, *newer)
    return _passes(python, f"newest: {', '.join(newer)}")


def lowest() -> bool:
    """The lowest that pyproject.toml allows: tests and types."""
    python = _environment("lowest", sys.executable, ROOT / "requirements" / "lowest.txt")
    tools = Path(sys.executable).parent
    cache = ROOT / ".mypy_cache" / "lowest"
    typed: list[list[str | Path]] = [
        [tools / "mypy", "--python-executable", python, "--cache-dir", cache, *_OLDER_TYPES],
        [tools / "pyright", "--pythonpath", python],
    ]
    # Beside the tests, which wait most of their time.
    checks = [_begun(*command, "rayorch_prefect") for command in typed]
    passed = _passes(python, "lowest")
    return all([check.wait() == 0 for check in checks]) and passed  # noqa: C419, each is waited for


def python_3_13() -> bool:
    """Python 3.13 with the locked releases."""
    if (interpreter := _interpreter("python3.13")) is None:
        print("versions: Python 3.13 is not on PATH: not tested")
        return True
    python = _environment("3.13", interpreter, ROOT / "requirements" / "dev.txt")
    return _passes(python, "Python 3.13")


_TRIED = {"lowest": lowest, "newest": newest, "Python 3.13": python_3_13}


def _offered() -> dict[str, str] | None:
    """Name -> newest version within the bounds; None if the index cannot be asked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [each for each in project["dependencies"] if each.split(">=")[0] in NAMES]
    command = [
        str(_UV),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--no-deps",
        "-",
    ]
    ended = subprocess.run(command, input="\n".join(asked), capture_output=True, text=True)
    if ended.returncode:
        return None
    pins = (line.partition("==") for line in ended.stdout.splitlines() if "==" in line)
    return {name: pin for name, _, pin in pins}


def _interpreter(name: str) -> str | None:
    """Its path, if there is one that runs."""
    path = shutil.which(name)
    runs = path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0
    return path if runs else None


def _environment(name: str, interpreter: str, lock: Path) -> Path:
    """The Python of `.venv-<name>`, made anew when the lock has changed."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    made = folder / "lock.sha256"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if made.is_file() and made.read_text() == digest:
        return python
    _run(_UV, "venv", "--quiet", "--clear", "--python", interpreter, folder)
    install = ("--quiet", "--require-hashes", "-r", lock)
    try:
        _run(_UV, "pip", "install", "--python", python, *install)
    except subprocess.CalledProcessError:
        # pip knows indexes of the machine's own that uv is not told of.
        _run(sys.executable, "-m", "pip", "--python", python, "install", *install)
    made.write_text(digest)
    return python


def _passes(python: Path, name: str) -> bool:
    print(f"versions: {name}", flush=True)
    return _begun(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FEW).wait() == 0


def _begun(*command: str | Path) -> subprocess.Popen[bytes]:
    # The package is this checkout, not installed: the editable one of .venv is not seen from here.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(list(map(str, command)), cwd=ROOT, env=environment)


def _run(*command: str | Path) -> None:
    subprocess.run(list(map(str, command)), cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main())
