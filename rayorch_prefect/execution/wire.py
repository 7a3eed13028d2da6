"""Messages as bytes: a batch each way in one C-speed pickle.

Ray pickles whatever is not bytes with a pickler that runs Python code for every class that it
meets, on the thread that all replies come through: for a batch of 64 small rows that was a quarter
of the worker's work and a tenth of the driver's. References cannot hide in bytes, since Ray would
not know that they are in use: they travel beside.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeAlias

from rayorch_prefect.execution.departure import LEAST_REPORT
from rayorch_prefect.execution.messages import (
    BatchMessage,
    ChunkAddress,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)

# A pickle of plain tuples.
Packed: TypeAlias = bytes

# All fields in order, whichever there are: one that is added later is not forgotten here.
_BATCH = tuple(field.name for field in fields(BatchMessage))
_REPLY = tuple(field.name for field in fields(RowsReply))
_values_of_batch = attrgetter(*_BATCH)
_values_of_reply = attrgetter(*_REPLY)
_CHUNKS = _BATCH.index("chunks")
_OUTPUTS = _REPLY.index("outputs")


def pack_batch(message: BatchMessage) -> tuple[Packed, list[Any]]:
    """A batch, and the stored objects that its chunks lie in."""
    places: dict[Any, int] = {}
    plain = list(_values_of_batch(message))
    plain[_CHUNKS] = tuple(
        (places.setdefault(chunk.ref, len(places)), chunk.position)
        if isinstance(chunk, ChunkAddress)
        else chunk
        for chunk in message.chunks
    )
    return pickle.dumps(plain, 5), list(places)


def unpack_batch(packed: Packed, stored: Sequence[Any] = ()) -> BatchMessage:
    """What `pack_batch` was given."""
    plain = pickle.loads(packed)
    if stored:
        plain[_CHUNKS] = tuple(
            ChunkAddress(stored[chunk[0]], chunk[1]) if isinstance(chunk, tuple) else chunk
            for chunk in plain[_CHUNKS]
        )
    return BatchMessage(*plain)


def pack_reply(reply: Any) -> Any:
    """A reply as bytes; others than RowsReply, which are rare, as they are."""
    if not isinstance(reply, RowsReply):
        return reply
    plain = list(_values_of_reply(reply))
    plain[_OUTPUTS] = tuple(
        (tuple(map(tuple, output.chunks)), output.shapes, output.mask) for output in reply.outputs
    )
    # What follows a pickle's end is not read; a shorter report would not be seen to leave.
    return pickle.dumps(plain, 5).ljust(LEAST_REPORT, b"\0")


def unpack_reply(packed: Any) -> Any:
    """What `pack_reply` was given."""
    if not isinstance(packed, bytes):
        return packed
    plain = pickle.loads(packed)
    plain[_OUTPUTS] = tuple(
        ReturnedOutput(tuple(ReturnedChunk(*chunk) for chunk in chunks), shapes, mask)
        for chunks, shapes, mask in plain[_OUTPUTS]
    )
    return RowsReply(*plain)
