"""A module with decorated stages, as a user would write it; other processes import it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayorch_prefect.program import F, Port, program, stage


@dataclass(frozen=True)
class Settings:
    languages: frozenset[str] = frozenset({"de", "en", "fr", "it"})
    limits: dict[str, Any] = field(default_factory=dict[str, Any])


class Base:
    def __init__(self, settings: Settings, *words: object) -> None:
        self.settings = settings

    def name(self) -> str:
        return "base"


@stage
class Night(Base):
    SIZE = 3

    def name(self) -> str:
        return f"night of {super().name()}, {Night.SIZE}, {triple(2)}, {isinstance(self, Base)}"

    def __call__(self, rows: Any) -> Any:
        return [[row] * self.SIZE for row in rows]


@stage
def triple(row: int) -> int:
    return row * 3


@program(version="1")
def nightly(source: Port) -> object:
    settings = Settings(limits={"b": {3, 1, 2}, "a": [1.5, None]})
    words = Night(settings, b"x", Path("a/b"), {"x", "y", "z"}, len, lambda row: row in {"p", "q"})
    return F.reduce(triple(F.expand(words(source), domain="word")))
