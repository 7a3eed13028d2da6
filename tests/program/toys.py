"""Stages that the tests of this folder declare Programs with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program import ClassStage, program, stage


@stage
class One:
    def __call__(self, rows: Any) -> Any:
        return rows


@stage(batch_size=4)
class Other:
    def __call__(self, rows: Any) -> Any:
        return rows


@stage
class Join:
    def __call__(self, *rows: Any) -> Any:
        return [list(row) for row in zip(*rows, strict=True)]


@stage(outputs=2)
class Two:
    def __call__(self, rows: Any) -> Any:
        return rows, rows


@stage
def double(row: int) -> int:
    return row * 2


@stage
async def fetch(row: str) -> str:
    return row


@stage
class Scaled:
    FACTOR = 10

    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, rows: Any) -> Any:
        return [row * self.by * Scaled.FACTOR for row in rows]


class Shifted(Scaled):  # pyright: ignore[reportGeneralTypeIssues]
    def __call__(self, rows: Any) -> Any:
        return [row + 1 for row in super().__call__(rows)]


def declared(stage_class: Any) -> ClassStage:
    """A decorated class as what it is: mypy does not apply class decorators."""
    assert isinstance(stage_class, ClassStage)
    return stage_class


def assert_refused(action: Callable[..., object], *words: str) -> str:
    """Run `action`; it must be refused at its line that is marked `# <-`, naming all `words`."""
    with pytest.raises(ProgramError) as caught:
        action()
    lines, first = inspect.getsourcelines(action)
    marked = next(first + at for at, line in enumerate(lines) if "# <-" in line)
    file = inspect.getsourcefile(action)
    message = str(caught.value)
    assert f"{file}:{marked}: " in message, message
    for word in words:
        assert word in message, message
    return message


def assert_declined(declare: Callable[[Any], object], *words: str) -> str:
    """As `assert_refused`, for compiling the Program `declare`."""
    compiled = program(declare)

    def action() -> object:
        return compiled.plan

    with pytest.raises(ProgramError) as caught:
        action()
    lines, first = inspect.getsourcelines(declare)
    marked = next(first + at for at, line in enumerate(lines) if "# <-" in line)
    message = str(caught.value)
    assert message.startswith(f"{inspect.getsourcefile(declare)}:{marked}: "), message
    for word in words:
        assert word in message, message
    return message
