"""The memory of this machine, or of the container that it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SHARED_MEMORY = "/dev/shm"

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, slots=True)
class Machine:
    """In bytes: memory in all and what of it is free, `/dev/shm` in all and what of it is free."""

    memory: int
    memory_free: int
    shared: int
    shared_free: int

    @classmethod
    def this(cls) -> Machine:
        """This one; a container's limit counts. Raises OSError where the system does not tell."""
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (_parted(x) for x in lines)}
        memory = min([found["MemTotal"], *_limits()])
        shared = os.statvfs(SHARED_MEMORY)
        return cls(
            memory,
            min(memory, found["MemAvailable"]),
            shared.f_frsize * shared.f_blocks,
            shared.f_frsize * shared.f_bavail,
        )


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(":")


def _limits() -> list[int]:
    texts = [Path(path).read_text().strip() for path in _LIMITS if Path(path).exists()]
    return [int(text) for text in texts if text.isdecimal()]
