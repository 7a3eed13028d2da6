"""What a stage gets for a reduced Port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rayorch_prefect.model.outcomes import Kind


@dataclass(frozen=True, slots=True)
class KeptFailure:
    """Stands in the place of a failed member under `F.reduce(on_failure="keep")`.

    `path` holds the ordinals from the parent down to the Entity that failed.
    """

    kind: Kind
    path: tuple[int, ...]
    type: str = ""
    message: str = ""


class Members(list[Any]):
    """The ordered list of one direct parent's members, with their ordinals.

    `ordinals[i]` is the ordinal of `members[i]`; `missing` holds the ordinals that
    `on_failure="skip"` left out. Filtered (DROPPED) members are in neither.
    """

    __slots__ = ("missing", "ordinals")

    ordinals: Sequence[int]
    missing: tuple[int, ...]

    def __init__(
        self,
        values: Iterable[Any] = (),
        ordinals: Sequence[int] | None = None,
        missing: tuple[int, ...] = (),
    ) -> None:
        super().__init__(values)
        self.ordinals = range(len(self)) if ordinals is None else ordinals
        self.missing = missing

    def __reduce__(self) -> tuple[Any, ...]:
        return Members, (list(self), self.ordinals, self.missing)
