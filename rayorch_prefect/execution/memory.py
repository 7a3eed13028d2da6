"""How much memory a stage may take, beside what Ray needs.

The limit is RLIMIT_DATA: it counts private writable memory alone. RLIMIT_AS would count Ray's
shared memory too, which is mapped as values arrive; at that limit Ray hangs without a word. It
holds only while the stage works: Ray's native code, which packs large results, does not survive it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024


class MemoryLimit:
    """A limit from what the process has now; where the system has none such, it limits nothing."""

    def __init__(self, more_mb: int) -> None:
        self._most = private_bytes() + more_mb * MIB if _has_limit() else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """While inside, memory beyond the limit is refused to this process."""
        if self._most is None:
            yield
            return
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min([self._most, *allowed]), hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _has_limit() -> bool:
    return sys.platform.startswith("linux")


def private_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def resident_mb() -> int:
    """MiB of private memory that this process has in RAM; 0 where the system does not tell."""
    if not _has_limit():
        return 0
    import resource

    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return (resident - shared) * resource.getpagesize() // MIB
