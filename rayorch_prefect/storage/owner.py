"""Who holds a lease, and whether that process is known to be dead."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process, so that its number is not taken for another's: empty texts where unknown.

    `boot` and `namespace` say where `pid` counts, `started` is when it began, in clock ticks
    since that boot.
    """

    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def this(cls) -> Process:
        return cls(_boot(), _namespace(), os.getpid(), _started(os.getpid()))

    def is_dead(self) -> bool:
        """Whether it has surely ended: False where this process cannot see it."""
        seen = bool(self.boot and self.namespace and self.started)
        here = (self.boot, self.namespace) == (_boot(), _namespace())
        return seen and here and _started(self.pid) != self.started


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class Owner:
    """A run that owns a (destination, program); `since` is an ISO time in UTC by its own clock."""

    run_id: str
    run_name: str
    host: str = field(default_factory=socket.gethostname)
    process: Process = field(default_factory=Process.this)
    since: str = field(default_factory=_now)

    def __str__(self) -> str:
        return (
            f"flow run {self.run_name} ({self.run_id}) on {self.host}, process "
            f"{self.process.pid}, since {self.since}"
        )


def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When the process began; empty if there is none, or only what its parent has yet to reap."""
    # The name before the last ")" may hold anything.
    words = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return words[19] if len(words) > 19 and words[0] not in "ZX" else ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace").strip()
    except OSError:
        return ""
