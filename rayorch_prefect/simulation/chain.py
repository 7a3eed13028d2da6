"""What is simulated: stages in a row, from documents to their pages and back to documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from rayorch_prefect.errors import UsageError


class Level(Enum):
    """Where a stage's rows lie; a range is a few consecutive pages of one document."""

    DOCUMENT = "document"
    RANGE = "range"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: `workers` of it, each called with up to `batch` rows.

    A call takes `call_s` and `row_s` for each row, and `child_s` for each page below a row that is
    a document or a range; all in seconds. A row's `row_s` varies by a log-normal factor of mean 1
    and this `sigma`, and a share `tail_share` of the rows takes `tail_factor` times as long: the
    same rows under every policy and in every batch. `whole` stages get documents and read their
    pages by themselves, up to `batch` of one document a call.
    """

    name: str
    level: Level = Level.PAGE
    batch: int = 1
    workers: int = 1
    call_s: float = 0.0
    row_s: float = 0.0
    child_s: float = 0.0
    sigma: float = 0.0
    tail_share: float = 0.0
    tail_factor: float = 1.0
    rowwise: bool = False
    linger_s: float = 0.0
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"stage {self.name!r}: its name must be a word such as ocr")
        for what in ("batch", "workers"):
            if getattr(self, what) < 1:
                raise UsageError(f"stage {self.name}: {what} must be at least 1")
        for what in ("call_s", "row_s", "child_s", "sigma", "tail_share", "tail_factor"):
            value = getattr(self, what)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"stage {self.name}: {what} must be at least 0, not {value}")
        if self.tail_share > 1:
            raise UsageError(f"stage {self.name}: the tail is a share of the rows, at most 1")


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages on documents, on ranges of `step` pages, on pages, and on the documents again."""

    before: tuple[Stage, ...]
    ranges: tuple[Stage, ...]
    pages: tuple[Stage, ...]
    after: tuple[Stage, ...]
    step: int = 16

    @classmethod
    def of(cls, stages: Sequence[Stage], step: int = 16) -> Chain:
        """The chain of these stages, in order. Raises UsageError if their levels make none."""
        names = [stage.name for stage in stages]
        if len(set(names)) < len(names):
            raise UsageError(f"each stage needs a name of its own, not {', '.join(names)}")
        order = "document stages, range stages, page stages, document stages"
        left = list(stages)
        before, ranges, pages, after = (_taken(left, level) for level in _LEVELS)
        if left or not pages:
            found = ", ".join(f"{stage.name} ({stage.level.value})" for stage in stages) or "none"
            raise UsageError(f"expected {order}, with one page stage at least; found {found}")
        if step < 1:
            raise UsageError(f"a range has at least one page, not {step}")
        return cls(before, ranges, pages, after, step)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of them, in order."""
        return (*self.before, *self.ranges, *self.pages, *self.after)

    @property
    def expands(self) -> bool:
        """Whether there are levels below the documents."""
        return bool(self.pages)

    @property
    def last_on_pages(self) -> str:
        """The stage after which a page is done."""
        below = [stage.name for stage in self.before if stage.whole]
        return self.pages[-1].name if self.pages else below[-1]

    def whole_documents(self) -> Chain:
        """One Grain a document on every stage: the opaque job."""
        below = tuple(_whole(stage, self.step) for stage in (*self.ranges, *self.pages))
        return Chain((*self.before, *below, *self.after), (), (), (), self.step)

    def until_regroup(self) -> Chain:
        """Up to the last page."""
        return replace(self, after=())

    def after_regroup(self) -> Chain:
        """What follows once the pages of all documents are there."""
        return Chain(self.after, (), (), (), self.step)


_LEVELS = (Level.DOCUMENT, Level.RANGE, Level.PAGE, Level.DOCUMENT)


def _taken(left: list[Stage], level: Level) -> tuple[Stage, ...]:
    found: list[Stage] = []
    while left and left[0].level is level:
        found.append(left.pop(0))
    return tuple(found)


def _whole(stage: Stage, step: int) -> Stage:
    if stage.level is Level.PAGE:
        return replace(stage, level=Level.DOCUMENT, whole=True)
    # A document's ranges follow one another, a call each.
    call_s = stage.call_s + stage.row_s
    return replace(stage, level=Level.DOCUMENT, whole=True, batch=step, row_s=0.0, call_s=call_s)
