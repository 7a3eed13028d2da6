"""Building the project's distributions and looking into them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_SOURCES = ("pyproject.toml", "README.md", "LICENSE")
_TREES = ("rayorch_prefect", "flows", "tasks")


def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml of this checkout."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def copy_sources(target: Path, origin: Path = ROOT) -> Path:
    """A copy of what a build reads, so that no build leaves anything in the checkout."""
    target.mkdir(parents=True)
    for name in _SOURCES:
        shutil.copy2(origin / name, target / name)
    for name in _TREES:
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(origin / name, target / name, symlinks=True, ignore=ignore)
    return target


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command to its end and return its stdout.

    Raises:
        AssertionError: it ended with a status other than 0; the message holds all it said.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment
    ended = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert ended.returncode == 0, f"{command} said:\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def build(source: Path, kind: str) -> Path:
    """Build one `wheel` or `sdist` of the tree at `source`, with the setuptools of this venv."""
    outdir = source / "dist"
    run(
        sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", outdir, source,
        cwd=source.parent,
    )  # fmt: skip
    (built,) = outdir.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


def unpack(sdist: Path, target: Path) -> Path:
    """The folder that an unpacked sdist is."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    (folder,) = target.iterdir()
    return folder


def contents(wheel: Path) -> dict[str, bytes]:
    """Path in the wheel -> bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def install(wheel: Path, folder: Path) -> Path:
    """A new environment with the wheel alone; dependencies come from the running one.

    A .pth file names the running site-packages. Python reads no .pth files inside that folder,
    so an editable install of this project there stays out of sight.
    """
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
        "--no-index", wheel, cwd=folder.parent,
    )  # fmt: skip
    site = installed_at(folder)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return python


def installed_at(folder: Path) -> Path:
    """The site-packages of the environment at `folder`."""
    (site,) = folder.glob("lib/python*/site-packages")
    return site
