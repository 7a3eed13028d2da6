"""Side-by-side expansions that meet again: a video has frames and audio segments.

Both are children of the video, with other numbers and other stages; each list comes back in its
own order. The stages that take a video apart yield: a frame is worked on before the last is there.
The "videos" are a few bytes made here: python -m examples.video
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rayorch_prefect import Engine, F, ParentOutcome, RecordFailure, program, stage

FRAME, AUDIO = b"F", b"A"
CHUNK = 1 + 4  # what it is, then four bytes of it


def track(video: bytes, kind: bytes) -> Iterator[bytes]:
    """The chunks of one kind, which come interleaved with others."""
    if len(video) % CHUNK:
        raise RecordFailure("Truncated", f"{len(video)} bytes are no whole number of chunks")
    for at in range(0, len(video), CHUNK):
        if video[at : at + 1] == kind:
            yield video[at + 1 : at + CHUNK]


def frames(video: bytes) -> Iterator[bytes]:
    """What is yielded is worked on while the rest of the video is still being read."""
    yield from track(video, FRAME)


def segments(video: bytes) -> Iterator[bytes]:
    """The same for its sound."""
    yield from track(video, AUDIO)


class Brightness:
    """One number a frame. A batch may hold frames of several videos."""

    def __call__(self, rows: list[bytes]) -> list[float]:
        return [sum(frame) / len(frame) for frame in rows]


class Loudest:
    """One number an audio segment."""

    def __call__(self, rows: list[bytes]) -> list[int]:
        return [max(segment) for segment in rows]


def join(brightness: Any, loudest: Any) -> dict[str, list[Any]]:
    """What is known of a video."""
    return {"brightness": list(brightness), "loudest": list(loudest)}


@program(version="1")
def video(source: Any) -> Any:
    """Brightness by frame and the loudest sample by segment."""
    frame = F.expand(stage(frames)(source), domain="frame")
    segment = F.expand(stage(segments)(source), domain="segment")
    bright = stage(Brightness, batch_size=16, replicas=2)()(frame)
    loud = stage(Loudest, batch_size=4)()(segment)
    return stage(join)(F.reduce(bright), F.reduce(loud))


def interleaved(pictures: int, sounds: int) -> bytes:
    """A video whose frame i is all i, and whose segment i peaks at 100 + i."""
    made = b""
    for i in range(max(pictures, sounds)):
        made += FRAME + bytes([i] * 4) if i < pictures else b""
        made += AUDIO + bytes([0, 100 + i, 0, 0]) if i < sounds else b""
    return made


VIDEOS = {
    "clip": interleaved(pictures=5, sounds=2),
    "broken": interleaved(pictures=1, sounds=1)[:-1],
    "silent": interleaved(pictures=2, sounds=0),
    "podcast": interleaved(pictures=0, sounds=3),
}


def main() -> None:
    """Print each video the moment both of its lists are whole."""
    names = list(VIDEOS)
    with Engine(video) as engine:
        for parent in engine.run(VIDEOS.values()):
            done = parent.outcome is ParentOutcome.COMPLETED
            print(f"{names[parent.index]}: {parent.value() if done else parent.cause}", flush=True)


if __name__ == "__main__":
    main()
