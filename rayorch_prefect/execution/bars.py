"""What a worker knows of barred groups, so that it skips their rows before they start."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable

from rayorch_prefect.execution.marker import NO_ROW, Marker
from rayorch_prefect.execution.messages import BatchMessage
from rayorch_prefect.model.events import Bar


class Bars:
    """The bars that a worker has reported or been told of. Safe to tell from another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[Bar] = set()

    def tell(self, bars: Iterable[Bar]) -> None:
        """Add bars."""
        with self._lock:
            self._known.update(bars)

    def forget(self, bar: Bar) -> None:
        """The bar does not hold."""
        with self._lock:
            self._known.discard(bar)

    def forget_before(self, oldest: int) -> None:
        """Microbatches before `oldest` have left."""
        if self._known:
            with self._lock:
                self._known = {bar for bar in self._known if bar[0] >= oldest}

    def __contains__(self, bar: Bar) -> bool:
        return bar in self._known


class Gate:
    """Decides, row by row of one batch, whether a row still starts. `row` is the one that was
    started last, `NO_ROW` where rows are not started one by one."""

    def __init__(self, bars: Bars, message: BatchMessage, marker: Marker | None = None) -> None:
        self._bars = bars
        self._message = message
        self._marker = marker
        self.batch = message.batch
        self.row = NO_ROW
        bars.forget_before(message.oldest)

    def skips(self, row: int) -> bool:
        """Whether the row's group is barred, or the row is left out anyhow."""
        if row in self._message.left_out:
            return True
        bars = self._message.bars
        return bool(bars) and bars[bisect_right(self._message.cuts, row)] in self._bars

    def skips_any(self) -> bool:
        """Whether some row of the batch might be skipped."""
        message = self._message
        return bool(message.left_out) or any(bar in self._bars for bar in message.bars)

    def starts(self, row: int) -> None:
        """The row is started now; announced where its stage has a row limit."""
        self.row = row
        if self._marker is not None:
            self._marker.row(row)

    def failed(self, row: int) -> None:
        """The row gave a GroupFailure: its siblings need not start here."""
        bars = self._message.bars
        if bars:
            self._bars.tell([bars[bisect_right(self._message.cuts, row)]])
