"""What happened when, in a bounded number of counters however long it takes."""

from __future__ import annotations

import threading

BUCKETS = 240
"""The most counters of a series; when they are used up, each holds twice the time."""


class Timeline:
    """Sums of named series over time; may be added to from any thread.

    `width_s` are the seconds of each bucket; bucket 0 begins at `begun`, on the clock of the
    times that `add` gets. `buckets` is an even number.
    """

    def __init__(self, begun: float, width_s: float = 1.0, buckets: int = BUCKETS) -> None:
        self.begun = begun
        self.width_s = width_s
        self.used = 1
        self._buckets = buckets
        self._series: dict[str, list[float]] = {}
        # The first and the last bucket that a series was added to, be it 0.
        self._windows: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def add(self, series: str, at: float, amount: float = 1.0) -> None:
        """Count `amount` at the time `at`; a time before the first bucket counts there."""
        with self._lock:
            bucket = self._bucket(at)
            sums = self._series.setdefault(series, [0.0] * self._buckets)
            sums[bucket] += amount
            first, last = self._windows.get(series, (bucket, bucket))
            self._windows[series] = min(first, bucket), max(last, bucket)

    def reach(self, at: float) -> None:
        """Let it last until `at`, though nothing may have happened."""
        with self._lock:
            self._bucket(at)

    def series(self, name: str) -> list[float]:
        """The sums of each bucket up to the last one that any series reached."""
        with self._lock:
            return self._series.get(name, [0.0] * self._buckets)[: self.used]

    def window(self, name: str) -> tuple[int, int] | None:
        """The first and the last bucket that it was added to, None if it never was."""
        return self._windows.get(name)

    @property
    def seconds(self) -> float:
        """What the buckets up to the last one hold."""
        return self.used * self.width_s

    def _bucket(self, at: float) -> int:
        while (bucket := int(max(0.0, at - self.begun) / self.width_s)) >= self._buckets:
            self._widen()
        self.used = max(self.used, bucket + 1)
        return bucket

    def _widen(self) -> None:
        for name, sums in self._series.items():
            pairs = [a + b for a, b in zip(sums[::2], sums[1::2], strict=True)]
            self._series[name] = pairs + [0.0] * (self._buckets - len(pairs))
        self._windows = {name: (a // 2, b // 2) for name, (a, b) in self._windows.items()}
        self.width_s *= 2
        self.used = (self.used + 1) // 2
