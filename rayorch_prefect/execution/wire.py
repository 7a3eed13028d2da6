"""Messages as bytes: a batch each way in one C-speed pickle.

Ray pickles whatever is not bytes with a pickler that runs Python code for every class that it
meets, on the thread that all replies come through: for a batch of 64 small rows that was a third
of the worker's work and a fifth of the driver's. References cannot hide in bytes, since Ray would
not know that they are in use: they travel beside.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
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


def pack_batch(message: BatchMessage) -> tuple[Packed, list[Any]]:
    """A batch, and the stored objects that its chunks lie in."""
    places: dict[Any, int] = {}
    chunks = tuple(
        (places.setdefault(chunk.ref, len(places)), chunk.position)
        if isinstance(chunk, ChunkAddress)
        else chunk
        for chunk in message.chunks
    )
    plain = (
        message.batch,
        message.call,
        message.rows,
        message.inputs,
        chunks,
        message.cuts,
        message.large_returns,
        message.bars,
        message.oldest,
        message.left_out,
        message.in_chunks,
        message.taken,
        message.pieces,
    )
    return pickle.dumps(plain, 5), list(places)


def unpack_batch(packed: Packed, stored: Sequence[Any] = ()) -> BatchMessage:
    """What `pack_batch` was given."""
    batch, call, rows, inputs, chunks, *rest = pickle.loads(packed)
    if stored:
        chunks = tuple(
            ChunkAddress(stored[chunk[0]], chunk[1]) if isinstance(chunk, tuple) else chunk
            for chunk in chunks
        )
    return BatchMessage(batch, call, rows, inputs, chunks, *rest)


def pack_reply(reply: Any) -> Any:
    """A reply as bytes; others than RowsReply, which are rare, as they are."""
    if not isinstance(reply, RowsReply):
        return reply
    outputs = tuple(
        (tuple(map(tuple, output.chunks)), output.shapes, output.mask) for output in reply.outputs
    )
    plain = (
        reply.rows,
        outputs,
        dict(reply.failures),
        reply.large_bytes,
        reply.skipped,
        reply.busy_s,
        reply.resident_mb,
        reply.unfit,
        reply.left_behind,
    )
    # What follows a pickle's end is not read; a shorter report would not be seen to leave.
    return pickle.dumps(plain, 5).ljust(LEAST_REPORT, b"\0")


def unpack_reply(packed: Any) -> Any:
    """What `pack_reply` was given."""
    if not isinstance(packed, bytes):
        return packed
    rows, outputs, *rest = pickle.loads(packed)
    returned = tuple(
        ReturnedOutput(tuple(ReturnedChunk(*chunk) for chunk in chunks), shapes, mask)
        for chunks, shapes, mask in outputs
    )
    return RowsReply(rows, returned, *rest)
