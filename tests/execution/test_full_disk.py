"""A disk that is really full: where a stage writes, where Ray keeps its files."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect import F, program, run_local, stage
from rayorch_prefect.errors import BackendDown, ClusterError
from rayorch_prefect.execution import full_disk, pauses
from rayorch_prefect.execution.private_ray import private_ray
from rayorch_prefect.execution.stage_runner import short
from tests.small_disk import MB, fill, small_disk


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(8) as disk:
        yield disk


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "FIRST_PROBE_S", 0.05)


def write(path: str) -> int:
    with Path(path).open("wb", buffering=0) as file:
        written = file.write(bytes(MB // 2))
        # A short write is how a disk says that it is all but full.
        return written + file.write(bytes(MB // 2 + MB // 2 - written))


class Write:
    """A temporary file a child; a full disk is freed by whoever finds it so `freed_after` times."""

    def __init__(self, ballast: str, freed_after: int) -> None:
        self.ballast = Path(ballast)
        self.left = freed_after

    def __call__(self, path: str) -> int:
        try:
            return write(path)
        except OSError:
            self.left -= 1
            if not self.left:
                self.ballast.unlink()
            raise
        finally:
            Path(path).unlink(missing_ok=True)


def writing(ballast: Path, freed_after: int, **options: Any) -> Any:
    @program(version="1")
    def writes(source):  # type: ignore[no-untyped-def]
        children = F.expand(source, domain="child")
        written = stage(Write, rowwise=True, batch_size=2, **options)
        return F.reduce(written(str(ballast), freed_after)(children))

    return writes


def test_a_stage_waits_for_space_and_no_row_pays(disk: Path) -> None:
    ballast = fill(disk)
    rows = [[str(disk / f"{row}-{child}") for child in range(3)] for row in range(2)]
    parents = list(run_local(writing(ballast, freed_after=7), rows))
    assert [parent.value() for parent in parents] == [[MB] * 3] * 2
    assert not ballast.exists()


def test_a_disk_that_stays_full_ends_the_run_and_says_where_it_is(disk: Path) -> None:
    ballast = fill(disk)
    rows = [[str(disk / f"{row}-{child}") for child in range(3)] for row in range(2)]
    with pytest.raises(BackendDown) as raised:
        list(run_local(writing(ballast, freed_after=0, backend_patience_s=0.3), rows))
    told = str(raised.value)
    assert "stage Write: the service or disk behind it stays down" in told
    assert "No space left on device" in told
    assert "the disk is full on" in told
    assert "free disk space there" in told
    ballast.unlink()
    assert len(list(run_local(writing(ballast, freed_after=0), rows))) == 2


def test_the_folder_is_named_by_the_error_or_found(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(disk / "x"))
    assert f"({disk}: 8 of 8 MiB are free)" in short(named)
    unnamed = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(disk) not in short(unnamed)
    fill(disk)
    monkeypatch.setattr(tempfile, "tempdir", str(disk))
    assert f"({disk}: 0 of 8 MiB are free)" in short(unnamed)
    assert full_disk.among("/proc", disk).startswith("; the disk is full on ")
    assert full_disk.among(disk.parent, "/no/such/folder") == ""
    assert short(OSError(errno.EIO, "an error of another kind")).endswith("another kind")


@pytest.mark.slow
def test_a_ray_whose_folder_is_on_a_full_disk(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(disk)
    monkeypatch.setenv("RAY_TMPDIR", str(disk))
    told = f"no local Ray could be started: .*the disk is full on .*{disk}"
    with pytest.raises(ClusterError, match=told), private_ray(1, 80 * MB):
        pass
