"""What goes over the wire comes back the same, and is long enough to be seen to leave."""

from __future__ import annotations

from rayorch_prefect.execution.departure import LEAST_REPORT
from rayorch_prefect.execution.messages import (
    BatchMessage,
    ChunkAddress,
    ReturnedChunk,
    ReturnedOutput,
    RowsReply,
)
from rayorch_prefect.execution.wire import pack_batch, pack_reply, unpack_batch, unpack_reply


def test_a_short_report_is_as_long_as_one_that_is_seen_to_leave() -> None:
    output = ReturnedOutput((ReturnedChunk(1, b"x"),), None, None)
    reply = RowsReply(1, (output,), {}, 0, left_behind=1)
    packed = pack_reply(reply)
    assert len(packed) >= LEAST_REPORT
    assert unpack_reply(packed) == reply


def test_references_of_a_batch_travel_beside_it() -> None:
    chunks = (b"x", ChunkAddress("one", 2), ChunkAddress("other", 0), ChunkAddress("one", 1))
    message = BatchMessage(3, 1, 4, ((("R", 0, 4),),), chunks, (2,), 0, bars=((0, 1, 0),))
    packed, stored = pack_batch(message)
    assert stored == ["one", "other"]
    assert b"other" not in packed
    assert unpack_batch(packed, stored) == message
