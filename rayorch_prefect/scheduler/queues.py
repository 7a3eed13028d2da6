"""One ready queue a Call: ranges of Entities, and closed batches that stay together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rayorch_prefect.model.events import EntityRange

# (call, range, limit) -> the first run of Grains in the range that are still READY, at most
# `limit` long; None if all were barred or their microbatch has left.
FirstRun = Callable[[int, EntityRange, int], EntityRange | None]


class _Ranges(Protocol):
    ranges: deque[EntityRange]


@dataclass(slots=True, eq=False)
class _Entry:
    ranges: deque[EntityRange] = field(default_factory=deque[EntityRange])
    closed: bool = False


class ReadyQueues:
    """Owner of ready work, in the order of arrival (`fifo`). Barred Grains are not searched for
    here: they are met at the head."""

    def __init__(self, calls: int, first_run: FirstRun) -> None:
        self._queues: list[deque[_Entry]] = [deque() for _ in range(calls)]
        self._first_run = first_run

    def push(self, call: int, microbatch: int, first: int, end: int) -> None:
        """Append Grains that have just become READY; neighbours are joined."""
        queue = self._queues[call]
        if not queue or queue[-1].closed:
            queue.append(_Entry())
        ranges = queue[-1].ranges
        if ranges and ranges[-1][0] == microbatch and ranges[-1][2] == first:
            ranges[-1] = (microbatch, ranges[-1][1], end)
        else:
            ranges.append((microbatch, first, end))

    def push_closed(self, call: int, ranges: list[EntityRange]) -> None:
        """Put a batch at the head that is sent as it is, joined with nothing."""
        self._queues[call].appendleft(_Entry(deque(ranges), closed=True))

    def push_head(self, call: int, microbatch: int, entity: int) -> None:
        """Put one Grain at the head, free to be batched with others."""
        queue = self._queues[call]
        if not queue or queue[0].closed:
            queue.appendleft(_Entry())
        queue[0].ranges.appendleft((microbatch, entity, entity + 1))

    def push_last(self, call: int, microbatch: int, entity: int) -> None:
        """Put one Grain behind all others."""
        self.push(call, microbatch, entity, entity + 1)

    def sent(self, call: int, ranges: Sequence[EntityRange]) -> None:
        """What was reserved or taken last has left as a batch."""

    def landed(self, call: int, ranges: Sequence[EntityRange]) -> None:
        """A batch has ended, and what came of it is in the tables."""

    def has_ready(self, call: int) -> bool:
        """Whether a Grain can be reserved; drops barred work from the head."""
        queue = self._queues[call]
        while queue:
            if self._next_run(call, queue[0], 1) is not None:
                return True
            queue.popleft()
        return False

    def head(self, call: int) -> EntityRange | None:
        """The range at the head; its first Grain is READY."""
        return self._queues[call][0].ranges[0] if self.has_ready(call) else None

    def closed_at_head(self, call: int) -> int:
        """How long the closed batch is that stands at the head, 0 if none does."""
        if not self.has_ready(call) or not self._queues[call][0].closed:
            return 0
        return sum(end - first for _, first, end in self._queues[call][0].ranges)

    def reserve(self, call: int, limit: int) -> list[EntityRange]:
        """Up to `limit` Grains from the head (`fifo`), or the closed batch that stands there."""
        if not self.has_ready(call):
            return []
        queue = self._queues[call]
        if queue[0].closed:
            return self._take(call, queue.popleft(), 1 << 62)
        taken: list[EntityRange] = []
        while limit and self.has_ready(call) and not queue[0].closed:
            more = self._take(call, queue[0], limit)
            limit -= sum(end - first for _, first, end in more)
            taken += more
        return taken

    def reserve_head(self, call: int, limit: int) -> list[EntityRange]:
        """Up to `limit` Grains from `head` on."""
        return self.reserve(call, limit)

    def reserve_full(self, call: int, limit: int) -> list[EntityRange]:
        """A batch of `limit` Grains from the head, or nothing (and nothing is moved)."""
        if not self.has_ready(call) or self._queues[call][0].closed:
            return []
        taken = self.reserve(call, limit)
        if sum(end - first for _, first, end in taken) == limit:
            return taken
        queue = self._queues[call]
        if not queue or queue[0].closed:
            queue.appendleft(_Entry())
        queue[0].ranges.extendleft(reversed(taken))
        return []

    def has_closed(self, call: int) -> bool:
        """Whether a closed batch stands anywhere in the queue; barred ones are dropped."""
        return self._first(call, closed=True) is not None

    def take_closed(self, call: int) -> list[EntityRange]:
        """The first closed batch, wherever it stands; empty if there is none."""
        entry = self._first(call, closed=True)
        if entry is None:
            return []
        self._queues[call].remove(entry)
        return self._take(call, entry, 1 << 62)

    def take_open(self, call: int, limit: int, *, ahead: bool = False) -> list[EntityRange]:
        """Up to `limit` Grains that stand in no closed batch, the first ones. If they go `ahead`
        they wait at their worker."""
        entry = self._first(call, closed=False)
        return [] if entry is None else self._take(call, entry, limit)

    def _first(self, call: int, *, closed: bool) -> _Entry | None:
        """The first entry of its kind that has READY Grains; those before that have none go."""
        queue = self._queues[call]
        for entry in [entry for entry in queue if entry.closed == closed]:
            if self._next_run(call, entry, 1) is not None:
                return entry
            queue.remove(entry)
        return None

    def _take(self, call: int, entry: _Ranges, limit: int) -> list[EntityRange]:
        taken: list[EntityRange] = []
        while limit:
            run = self._next_run(call, entry, limit)
            if run is None:
                break
            microbatch, _, stop = run
            taken.append(run)
            limit -= stop - run[1]
            entry.ranges[0] = (microbatch, stop, entry.ranges[0][2])
        return taken

    def _next_run(self, call: int, entry: _Ranges, limit: int) -> EntityRange | None:
        """The first run of READY Grains of an entry, which then starts with it."""
        ranges = entry.ranges
        while ranges:
            run = self._first_run(call, ranges[0], limit)
            if run is not None:
                ranges[0] = (run[0], run[1], ranges[0][2])
                return run
            ranges.popleft()
        return None

    def ranges(self, call: int) -> list[EntityRange]:
        """All that stands in a Call's queue, barred work included (for checks and stories)."""
        return [known for entry in self._queues[call] for known in entry.ranges]

    def forget(self, microbatch: int) -> None:
        """Drop the work of a microbatch that has ended."""
        for queue in self._queues:
            for entry in queue:
                entry.ranges = deque(known for known in entry.ranges if known[0] != microbatch)
            kept = [entry for entry in queue if entry.ranges]
            queue.clear()
            queue.extend(kept)
