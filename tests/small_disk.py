"""A disk of a few megabytes, which a test can really fill."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MB = 1024**2


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A folder on a disk of its own; skips the test where this user may not mount one."""
    with tempfile.TemporaryDirectory(prefix="small-disk-", dir="/tmp") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder]
        try:
            mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.skip(f"no mount here: {error}")
        if mounted.returncode:
            pytest.skip(f"only root may mount a disk: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            # Lazily: a server that is just ending may still have a log open there.
            subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path, but: int = 0) -> Path:
    """Leave `but` bytes free; the file that takes the rest. Deleting it is freeing the disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MB))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - but))
    return ballast
