"""Driver and workers run the same package on the same Python: they exchange pickles."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rayorch_prefect import _version


@dataclass(frozen=True, slots=True)
class Versions:
    """Of a process: the package's version, and Python's as `3.11`."""

    package: str
    python: str

    def __str__(self) -> str:
        return f"rayorch-prefect {self.package} on Python {self.python}"


def own_versions() -> tuple[str, str]:
    """The package's and Python's version in this process; plain texts, which any version reads."""
    return _version.VERSION, "{}.{}".format(*sys.version_info)


def mismatch(driver: tuple[str, str], worker: tuple[str, str]) -> str:
    """What to say if they differ, empty if not."""
    if driver == worker:
        return ""
    return (
        f"the driver has {Versions(*driver)} and this worker {Versions(*worker)}; install the "
        "same rayorch-prefect and Python on every node, or have Ray bring the package to the "
        "workers (--working-dir, runtime_env)"
    )
