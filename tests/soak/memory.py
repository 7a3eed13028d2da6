"""What the driver's process grows by: private bytes, beside what Ray alone keeps of dead actors.

Ray's core keeps records of every actor that died, for as long as the process is connected: a bare
loop that starts and kills actors (`bare`) grew by 17 KiB an actor in a hundred killed singly and
by 47 KiB in 32 killed eight at a time; an Engine whose workers were killed by 25 KiB in 64, of
which tracemalloc saw little that was the Engine's. So what a run is charged for is its growth
without the deaths' share, and that share is measured by the bare loop in the same run. A soak of
5,100 rows and 289 deaths grew by 31 KiB a death in all.
"""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1024**2
MOST_PER_THOUSAND = MIB
# Samples that are warm-up, and those at either end of the rest whose least is taken.
WARM_UP = 0.3
END = 0.1
# Pages of the allocator come and go, which shows only where few rows were run.
FEW_ROWS = 5_000
NOISE = 2 * MIB
# What stories remember of the last 4,096 batches is not full before some thousand rows.
STORIES = 2 * MIB


def private_bytes() -> int:
    """Of this process, without garbage and free pages; Ray's shared memory is left out."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """Private bytes after so many rows and so many lost actors."""

    rows: int
    lost: int
    private: int


@dataclass
class Memory:
    """Samples of the driver's process. `of_lost` are the bytes that Ray alone keeps of an actor
    that died, measured in the same run (`bare`)."""

    of_lost: float = 0.0
    samples: list[Sample] = field(default_factory=list[Sample])

    def sample(self, rows: int, lost: int) -> None:
        self.samples.append(Sample(rows, lost, private_bytes()))

    def slope(self) -> float:
        """MiB per 1,000 rows after the warm-up, with all that Ray keeps."""
        first, last = self._ends()
        return (last.private - first.private) / MIB / max(1, last.rows - first.rows) * 1000

    def own_slope(self) -> float:
        """The same without what Ray keeps of dead actors."""
        first, last = self._ends()
        return self._growth(first, last) / MIB / max(1, last.rows - first.rows) * 1000

    def per_lost(self) -> float:
        """KiB a lost actor, as if nothing else grew."""
        first, last = self._ends()
        return (last.private - first.private) / 1024 / max(1, last.lost - first.lost)

    def faults(self) -> list[str]:
        first, last = self._ends()
        rows = last.rows - first.rows
        allowed = MOST_PER_THOUSAND * rows / 1000 + (NOISE + STORIES if rows < FEW_ROWS else 0)
        if self._growth(first, last) <= allowed:
            return []
        return [f"memory grew by {self.own_slope():.2f} MiB per 1,000 rows: {first} to {last}"]

    def _ends(self) -> tuple[Sample, Sample]:
        warm = self.samples[int(len(self.samples) * WARM_UP) :]
        several = max(1, int(len(warm) * END))
        return (
            min(warm[:several], key=lambda each: each.private),
            min(warm[-several:], key=lambda each: each.private),
        )

    def _growth(self, first: Sample, last: Sample) -> float:
        return last.private - first.private - self.of_lost * (last.lost - first.lost)
