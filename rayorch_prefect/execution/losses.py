"""Stored values that are gone: the node that had them has died."""

from __future__ import annotations

from collections.abc import Sequence

LOST_BLOCK = "LostBlock"


class LostValues(Exception):
    """Reading stored objects failed for those at `positions` among the asked ones."""

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(positions)
        self.positions = tuple(positions)

    def __str__(self) -> str:
        return (
            f"{len(self.positions)} stored objects are lost: the node that had them has died; "
            "run the source again"
        )
