"""Small documents by number: each tells what is to become of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayorch_prefect import F, GroupFailure, Program, RecordFailure, program, stage

# Random kills may hit a row that stands alone, or an upload, more than three times.
TRIES = 20
# Numbers in a large page, and characters that a large output has more: stored, not in messages.
LARGE = 60_000
FILLING = 100_000


@dataclass(frozen=True)
class Begun:
    """A folder with a file for each process that has begun its first batch. Its name has the
    process's time of start, because numbers of processes are used again."""

    folder: Path

    def note(self) -> None:
        self.folder.joinpath(f"{os.getpid()}-{started_at(os.getpid())}").touch()

    def has(self, pid: int) -> bool:
        return self.folder.joinpath(f"{pid}-{started_at(pid)}").exists()


def started_at(pid: int) -> str:
    """When the process started, in the kernel's ticks; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


@dataclass(frozen=True)
class Numbered:
    """A source row."""

    number: int
    uri: str


class Split:
    """A row in, its pages out; each 29th row fails, each 5th has large pages."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun

    def __call__(self, row: Numbered) -> list[Any]:
        self.begun.note()
        number = row.number
        if number % 29 == 0:
            raise RecordFailure("Odd", f"row {number} is like that")
        size = LARGE if is_large(number) else 1
        return [(number, i, np.full(size, i)) for i in range(number % 4 + 1)]


class Read:
    """A page in, its line out; some pages are gaps, some spoil their row."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun

    def __call__(self, page: tuple[int, int, Any]) -> str:
        self.begun.note()
        number, i, data = page
        # Slower than splitting, so that large pages lie in the store when their node goes.
        time.sleep(0.1 if len(data) > 1 else 0.005)
        if number % 31 == 7 and i == 0:
            raise RecordFailure("Blank", f"page {i} of {number}")
        if number % 37 == 3 and i == 0:
            raise GroupFailure("Torn", f"page {i} of {number}")
        return f"{number}/{i}: {int(data.sum())}"


class Join:
    """The lines of a row in, its output out; each 5th is large."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun

    def __call__(self, lines: Any) -> dict[str, Any]:
        self.begun.note()
        text = "".join(f"{line}\n" for line in lines)
        number = int(text.partition("/")[0])
        return {".txt": filled(number, text)}


def filled(number: int, text: str) -> str:
    """The text as it is published."""
    return text + "." * FILLING if is_large(number) else text


def is_large(number: int) -> bool:
    return number % 5 == 0


def toy(begun: Begun) -> Program:
    """Rows are split and joined on the second node, which dies with what lies there, and read on
    either."""
    common: Any = {"rowwise": True, "num_cpus": 0.1, "retry_budget": TRIES}
    far: Any = {**common, "resources": {"second": 0.1}}
    split = stage(Split, **far, replicas=2, batch_size=8)(begun)
    read = stage(Read, **common, replicas=2, batch_size=4)(begun)
    join = stage(Join, **far, replicas=1, batch_size=16)(begun)

    @program(version="1")
    def toy(row: Any) -> Any:
        lines = read(F.expand(split(row), domain="page"))
        return join(F.reduce(lines, on_failure="skip"))

    return toy


def expected(number: int) -> bytes | str:
    """The published bytes of a row, or the type of its failure."""
    pages = number % 4 + 1
    size = LARGE if is_large(number) else 1
    if number % 29 == 0:
        return "Odd"
    first = 1 if number % 31 == 7 else 0
    if number % 37 == 3 and not first:
        return "Torn"
    if first == pages:
        return "Blank"
    text = "".join(f"{number}/{i}: {i * size}\n" for i in range(first, pages))
    return filled(number, text).encode()
