"""Outcomes of Items and parents, and the failures that cause them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Outcome(IntEnum):
    """What became of an Item. Kept in byte arrays, so the numbers are part of the layout."""

    PENDING = 0
    PRESENT = 1
    DROPPED = 2
    FAILED = 3
    SUPPRESSED = 4


OUTCOME_MOVES = {
    (Outcome.PENDING, Outcome.PRESENT): "its Grain committed, or it follows from PRESENT ones",
    (Outcome.PENDING, Outcome.DROPPED): "a mask is false, or what it needs is DROPPED",
    (Outcome.PENDING, Outcome.FAILED): "its own Grain failed for good",
    (
        Outcome.PENDING,
        Outcome.SUPPRESSED,
    ): "what it needs failed, its group is barred, or its parent is doomed",
}
"""How an Item settles: once."""


class ParentOutcome(StrEnum):
    """What became of a parent (a root Entity)."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    DROPPED = "DROPPED"


class Kind(StrEnum):
    """The kinds of failure, gravest first."""

    CONTRACT_ERROR = "ContractError"
    ATTEMPTS_EXHAUSTED = "AttemptsExhausted"
    UPLOAD_FAILED = "UploadFailed"
    GROUP_FAILURE = "GroupFailure"
    RECORD_FAILURE = "RecordFailure"

    @property
    def gravity(self) -> int:
        """0 for the gravest kind."""
        return _GRAVITY[self]


_GRAVITY = {kind: position for position, kind in enumerate(Kind)}

TOO_MANY_GAPS = "TooManyGaps"
DEADLINE_EXCEEDED = "DeadlineExceeded"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an Item is FAILED or SUPPRESSED, as plain data.

    `type` is the program's word (Encrypted, NotAPdf) or, for an exhausted budget, the last
    error's name. `path` holds the ordinals from the parent down to the Entity whose Grain
    failed: () is the parent itself, (3,) its child 3. `attempts` counts the charged tries.
    `culprit` is the (microbatch, row) of another parent where a Grain of that one, in the same
    batch, broke the contract.
    """

    kind: Kind
    type: str
    message: str
    stage: str
    domain: str
    path: tuple[int, ...] = ()
    attempts: int = 1
    culprit: tuple[int, int] | None = None

    @property
    def child(self) -> int | None:
        """The ordinal of the direct child of the parent that failed, if it was not the parent."""
        return self.path[0] if self.path else None

    @property
    def named(self) -> str:
        """Kind and type, as GroupFailure[Encrypted]; once where both say the same."""
        same = self.type == self.kind.value
        return self.kind.value if same else f"{self.kind.value}[{self.type}]"

    def __str__(self) -> str:
        where = f"{self.domain} {'/'.join(map(str, self.path))}".strip()
        text = f"{self.named} in stage {self.stage} at {where}"
        return f"{text}: {self.message}" if self.message else text


@dataclass(frozen=True, slots=True)
class Gap:
    """The highest Entity that a forgiving reduce left out of a COMPLETED parent."""

    domain: str
    path: tuple[int, ...]
    cause: Failure
