"""Test data: a source whose bytes are at hand, and the path of the shared cases."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

CASES = Path(__file__).parents[3] / "shared" / "cases" / "pdf"


@dataclass
class LocalSource:
    """Reads as a `Source` does and counts its reads."""

    key: str
    data: bytes
    etag: str = "1"
    error: Exception | None = None
    reads: int = field(default=0, compare=False)

    @property
    def uri(self) -> str:
        return f"s3://shelf/{self.key}"

    def read(self) -> bytes:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.data


def case(name: str) -> LocalSource:
    return LocalSource(name, (CASES / name).read_bytes())


def right_answers() -> list[dict[str, str]]:
    """The rows of dev_set.csv, none where the cases are not beside the checkout."""
    table = CASES / "dev_set.csv"
    if not table.exists():
        return []
    with table.open(newline="") as rows:
        return list(csv.DictReader(rows))
