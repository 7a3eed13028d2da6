"""One local Ray for all tests here, and ways to know what workers did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray._private import state

from tests.services import ray_cluster, s3_server

__all__ = ["ray_cluster", "s3_server"]


class Notes:
    """Lines that workers write to a file, each with one append; picklable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, line: object) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def first_time(self, what: object) -> bool:
        """Notes it; whether it had not been noted before."""
        known = str(what) in self.lines()
        self.add(what)
        return not known


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path / "notes")


@pytest.fixture
def cluster(ray_cluster: str) -> Iterator[str]:
    """The shared Ray; a test that uses it leaves no actor of its own alive."""
    assert ray.is_initialized()
    before = alive_actors()
    yield ray_cluster
    eventually(lambda: alive_actors() <= before)


def alive_actors() -> set[str]:
    """Ids of the actors that are not dead, asked of the connected cluster itself."""
    actors = state.actors()
    return {name for name, actor in actors.items() if actor["State"] != "DEAD"}


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until it holds; fails if it does not in time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)
