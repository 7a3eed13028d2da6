"""What an upload task of the user's own is given."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.execution.parcels import Parcel
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.storage import S3Location, Source


class WholeParent:
    """A source whose parent is COMPLETED, as an upload task gets it; as text it is the source key.

    `source` is the object that was listed, `index` its place among the night's sources, `missing`
    its gaps as ordinal paths ("1", "3/2"), `destination` the night's, such as `s3://bucket/out/`.
    Picklable and small: the value stays in Ray's object store until `value()`.
    """

    # Like Parcel no dataclass: Prefect and prefect-ray would walk through it.
    __slots__ = ("_parcel", "destination", "index", "missing", "source")

    def __init__(
        self, parent: Parent, index: int, missing: tuple[str, ...], destination: S3Location
    ) -> None:
        self._parcel = Parcel(_as_it_is, parent)
        self.source: Source = parent.row
        self.index = index
        self.missing = missing
        self.destination = str(destination)

    def value(self) -> Any:
        """The Program's output, fetched into this process."""
        return self._parcel.open()

    def __str__(self) -> str:
        return self.source.key

    def __repr__(self) -> str:
        return f"WholeParent({self.source.uri}, index={self.index})"


def _as_it_is(value: Any) -> Any:
    return value
