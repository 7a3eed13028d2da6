"""What a batch on Ray hands over while it runs, taken from Ray's generator of references.

References that were taken belong to the driver and survive their actor; what was not taken is
lost with it, and made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError

from rayorch_prefect.execution import object_store
from rayorch_prefect.execution.backend import BatchReply, ChunksCame
from rayorch_prefect.execution.messages import Portion, TakenBack

# Objects that an actor makes ahead of the driver, which takes them as they come.
MOST_UNTAKEN = 16


class Portions:
    """The messages of one batch, in order; iterating blocks. Raises RayError if the batch or its
    actor fails, or if a large chunk was not stored."""

    def __init__(self, worker: int, batch: int, references: Any) -> None:
        self._worker = worker
        self._batch = batch
        self._references = references

    def __iter__(self) -> Iterator[ChunksCame | BatchReply]:
        for reference in self._references:
            portion: Portion | TakenBack = ray.get(reference)
            if isinstance(portion, TakenBack):
                return
            large = self._large() if portion.large else None
            if portion.chunks:
                yield ChunksCame(self._worker, self._batch, portion.chunks, large)
            if portion.end is not None:
                yield BatchReply(self._worker, self._batch, portion.end)

    def _large(self) -> Any:
        reference = next(self._references)
        if reference == self._references.completed():
            ray.get(reference)  # raises why there is none
        if (problem := object_store.unstored([reference])) is not None:
            raise ObjectStoreFullError(problem)
        return reference
