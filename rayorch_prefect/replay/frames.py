"""Frames in a file: each is whole or not there.

    b"rayorch recording" + one byte, the format's version
    a frame: length and CRC-32 of what follows (4 bytes each, big-endian), then a piece of one
    deflate stream that goes through all frames, flushed so that each can be read by itself

The stream makes small frames cheap; the check makes what a killed process had half written known.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from rayorch_prefect.errors import UsageError

VERSION = 1
_MAGIC = b"rayorch recording"
_HEAD = struct.Struct(">II")
_LEVEL = 3
# No frame that is written here comes near it: a file that says so is not ours.
_LONGEST = 256 << 20


class FrameWriter:
    """A new file of frames. Raises FileExistsError and other OSErrors."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._stream = zlib.compressobj(_LEVEL)
        self.size = self._file.write(_MAGIC + bytes((VERSION,)))

    def add(self, payload: bytes) -> None:
        """Write one frame with one call. Raises OSError, after which nothing more is to come."""
        piece = self._stream.compress(payload) + self._stream.flush(zlib.Z_SYNC_FLUSH)
        frame = _HEAD.pack(len(piece), zlib.crc32(piece)) + piece
        written = self._file.write(frame)
        if written != len(frame):
            raise OSError(f"{written} of {len(frame)} bytes were written")
        self.size += written

    def close(self) -> None:
        """Leave the file."""
        self._file.close()


def read_frames(path: Path) -> Iterator[bytes]:
    """The whole frames of a file, up to the first that is not.

    Raises UsageError for a file that cannot be read or is no recording of this version.
    """
    try:
        with path.open("rb") as file:
            _require_ours(path, file.read(len(_MAGIC) + 1))
            stream = zlib.decompressobj()
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, check = _HEAD.unpack(head)
                piece = file.read(length) if length <= _LONGEST else b""
                if len(piece) != length or zlib.crc32(piece) != check:
                    return
                yield stream.decompress(piece, _LONGEST)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; expected a recording") from None
    except zlib.error as error:
        raise UsageError(f"{path} is damaged ({error}); expected a recording") from None


def _require_ours(path: Path, start: bytes) -> None:
    if not start.startswith(_MAGIC):
        raise UsageError(f"{path} is no recording; expected a file that `record=` has made")
    if start[len(_MAGIC) :] != bytes((VERSION,)):
        raise UsageError(
            f"{path} is a recording in another format than {VERSION}, which this version reads; "
            "replay it with the version that made it"
        )
