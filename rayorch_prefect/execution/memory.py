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
    """A limit from what the process has now; where the system has none such, it limits nothing.

    It may be held several times at once, by one thread: it ends with the last.
    """

    def __init__(self, more_mb: int) -> None:
        self._most = private_bytes() + more_mb * MIB if _has_limit() else None
        self._holders = 0
        self._before = (0, 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """While inside, memory beyond the limit is refused to this process."""
        if self._most is None:
            yield
            return
        if not self._holders:
            self._before = _data_limit()
            _set_data_limit(self._most, self._before)
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders:
                _set_data_limit(self._before[0], self._before)


def _data_limit() -> tuple[int, int]:
    """(soft, hard), in bytes."""
    import resource

    return resource.getrlimit(resource.RLIMIT_DATA)


def _set_data_limit(soft: int, before: tuple[int, int]) -> None:
    """Lower the soft limit to `soft`, or have it again as it was."""
    import resource

    allowed = [limit for limit in (soft, *before) if limit != resource.RLIM_INFINITY]
    hard = before[1]
    resource.setrlimit(resource.RLIMIT_DATA, (min(allowed, default=soft), hard))


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
