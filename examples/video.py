"""Side-by-side expansions that meet again: a video has frames and audio segments.

Both are children of the video, with other numbers and other stages; each list comes back in its
own order. The "videos" are a few bytes made here: python -m examples.video
"""

from __future__ import annotations

from typing import Any

from rayorch_prefect import Engine, F, ParentOutcome, RecordFailure, program, stage

FRAME, AUDIO = b"F", b"A"
CHUNK = 1 + 4  # what it is, then four bytes of it


def demux(video: bytes) -> tuple[list[bytes], list[bytes]]:
    """The frames and the audio segments of a video, which come interleaved."""
    if len(video) % CHUNK:
        raise RecordFailure("Truncated", f"{len(video)} bytes are no whole number of chunks")
    chunks = [video[at : at + CHUNK] for at in range(0, len(video), CHUNK)]
    frames = [chunk[1:] for chunk in chunks if chunk[:1] == FRAME]
    return frames, [chunk[1:] for chunk in chunks if chunk[:1] == AUDIO]


class Brightness:
    """One number a frame. A batch may hold frames of several videos."""

    def __call__(self, frames: list[bytes]) -> list[float]:
        return [sum(frame) / len(frame) for frame in frames]


class Loudest:
    """One number an audio segment."""

    def __call__(self, segments: list[bytes]) -> list[int]:
        return [max(segment) for segment in segments]


def join(frames: Any, segments: Any) -> dict[str, list[Any]]:
    """What is known of a video."""
    return {"brightness": list(frames), "loudest": list(segments)}


@program(version="1")
def video(source: Any) -> Any:
    """Brightness by frame and the loudest sample by segment."""
    frames, segments = stage(demux, outputs=2)(source)
    bright = stage(Brightness, batch_size=16, replicas=2)()(F.expand(frames, domain="frame"))
    loud = stage(Loudest, batch_size=4)()(F.expand(segments, domain="segment"))
    return stage(join)(F.reduce(bright), F.reduce(loud))


def interleaved(frames: int, segments: int) -> bytes:
    """A video whose frame i is all i, and whose segment i peaks at 100 + i."""
    made = b""
    for i in range(max(frames, segments)):
        made += FRAME + bytes([i] * 4) if i < frames else b""
        made += AUDIO + bytes([0, 100 + i, 0, 0]) if i < segments else b""
    return made


VIDEOS = {
    "clip": interleaved(frames=5, segments=2),
    "broken": interleaved(frames=1, segments=1)[:-1],
    "silent": interleaved(frames=2, segments=0),
    "podcast": interleaved(frames=0, segments=3),
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
