"""Back-pressure: how many Grains of a Call may go now.

A value is *pending* from the dispatch of the Grain that makes it to the commit of its last
reader. Until it is reported it counts as much as earlier ones of its Call did on average; then as
much as it is. A Call is not dispatched past a bound on pending values, be it the Engine's or its
stage's, and leaves room for one round of each Call after it, so that what is nearer to completion
is never held up by what is not. (Reserving a share for each operator is how Ray Data does it.)

Never a deadlock: every batch in flight ends in an event. If none is in flight, nothing else is
waited for (see `Dispatcher`), and still no Grain may go, then some are let *past* the bound: of
the oldest parent with a ready Grain, one at first, and twice as many each time that this has let
nothing go. Each such step ends a Grain of finitely many, so the run ends; what is held beyond the
bound is at most twice what the oldest parent needed to hold at once.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rayorch_prefect.model.reports import OutputReport
from rayorch_prefect.program.plan import Call, Plan, Pool
from rayorch_prefect.scheduler.counts import Counts

MIB = 1 << 20

# What a Grain is taken to make before one of its Call has come back. Small enough that a machine
# with a small object store is not filled by the first round, large enough not to hold up others.
UNKNOWN_BYTES = 8 * MIB
UNKNOWN_CHILDREN = 16

# The guess for a batch that would only wait: it gains little, and its values may be large.
UNKNOWN_AHEAD_BYTES = 32 * MIB

# Grains that an estimate remembers.
_MEMORY = 1024


@dataclass(frozen=True, slots=True)
class Bound:
    """How much may be pending at once; None: no bound."""

    values: int | None = None
    bytes: int | None = None


class _Measure:
    """Pending values of all Calls in one unit: their number, or their bytes."""

    def __init__(
        self,
        plan: Plan,
        counts: Counts,
        most_held: int,
        bound: int | None,
        stage_bounds: list[float],
        unknown: list[float],
    ) -> None:
        calls = len(plan.calls)
        self.held = [0] * calls
        self.each = unknown
        self._counts = counts.calls
        self._bound = math.inf if bound is None else bound
        self._stage_bounds = stage_bounds
        self._pool_of = [call.pool for call in plan.calls]
        self._sharing = [
            [call.id for call in plan.calls if call.pool == pool.id] for pool in plan.pools
        ]
        self._round = [_in_a_round(plan.pools[call.pool], most_held) for call in plan.calls]
        self._most_reserved = self._bound / (2 * max(1, calls))
        self._reserved = [0.0] * calls
        self._made = [0.0] * calls
        self._grains = [0.0] * calls

    @property
    def bounds(self) -> bool:
        """Whether anything is bounded in this unit."""
        return min([self._bound, *self._stage_bounds]) < math.inf

    def learn(self, call: int, grains: float, made: float) -> None:
        """So much was made, and with it so many Grains of a Call have ended."""
        grains += self._grains[call]
        made += self._made[call]
        if grains > _MEMORY:
            grains /= 2
            made /= 2
        self._grains[call], self._made[call] = grains, made
        if not grains:
            return
        self.each[call] = each = made / grains
        self._reserved[call] = min(self._round[call] * each, self._most_reserved)

    def could_be(self, call: int, want: int, each: float) -> bool:
        """Whether `want` more Grains fit if all in flight make `each`; so once one has ended, which
        tells what one makes."""
        known = self._grains[call] > 0
        return known or (self._counts[call].in_flight + want) * each <= self._bound

    def load(self, call: int) -> float:
        """What is pending, and the rounds of the Calls after this one."""
        load = float(sum(self.held))
        for other, counts in enumerate(self._counts):
            making = counts.in_flight * self.each[other]
            if other > call and making < self._reserved[other]:
                making = self._reserved[other]
            load += making
        return load

    def stage_load(self, pool: int) -> float:
        """What is pending of a stage's Calls."""
        return sum(
            self.held[call] + self._counts[call].in_flight * self.each[call]
            for call in self._sharing[pool]
        )

    def room(self, call: int, want: int) -> int:
        """How many of `want` Grains may go. A batch that the bound could hold twice goes whole or
        not at all while others of its Call are in flight: small ones would breed small ones."""
        each, pool = self.each[call], self._pool_of[call]
        if not each:
            return want
        left = bound = self._bound
        if bound < math.inf:
            left = bound - self.load(call)
        if self._stage_bounds[pool] < math.inf:
            left = min(left, self._stage_bounds[pool] - self.stage_load(pool))
            bound = min(bound, self._stage_bounds[pool])
        if left >= want * each:
            return want
        if self._counts[call].in_flight and 2 * want * each <= bound:
            return 0
        return max(0, int(left // each))


class Credits:
    """Owner of what is pending."""

    def __init__(self, plan: Plan, counts: Counts, most_held: int, bound: Bound) -> None:
        self.peak_bytes = 0
        self._stocks = _Stocks()
        pools = plan.pools
        self.values = _Measure(
            plan,
            counts,
            most_held,
            bound.values,
            [math.inf if pool.max_pending is None else pool.max_pending for pool in pools],
            [_values_unknown(call) for call in plan.calls],
        )
        in_mb = [math.inf if pool.max_pending_mb is None else pool.max_pending_mb for pool in pools]
        self.bytes = _Measure(
            plan,
            counts,
            most_held,
            bound.bytes,
            [mb * MIB for mb in in_mb],
            [_bytes_unknown(bound, pools[call.pool]) for call in plan.calls],
        )
        self._bounding = [one for one in (self.bytes, self.values) if one.bounds]
        self._past = 1
        self._open_to, self._open_for = -1, 0
        self._held_then: tuple[int, int] | None = None

    def room(self, call: int, want: int) -> int:
        """How many of `want` Grains of a Call may go now."""
        if self._open_to == call:
            return min(want, self._open_for)
        for measure in self._bounding:
            want = min(want, measure.room(call, want))
        return want

    def room_ahead(self, call: int, want: int) -> bool:
        """Whether a batch of so many Grains may go to wait at a worker that has one."""
        could_be = self.bytes.could_be(call, want, UNKNOWN_AHEAD_BYTES)
        return could_be and self.room(call, want) == want

    def open_to(self, call: int, grains: int) -> None:
        """So many Grains of a Call go past the bound; 0: no more."""
        self._open_to, self._open_for = call if grains else -1, grains

    def went_past(self) -> None:
        """One of them has."""
        self._open_for -= 1

    def went(self) -> None:
        """A batch has left within the bound."""
        self._held_then = None

    def past(self) -> int:
        """How many Grains are let past the bound, now that nothing else moves."""
        held = sum(self.bytes.held), sum(self.values.held)
        then, self._held_then = self._held_then, held
        grew = then is not None and held[0] >= then[0] and held[1] >= then[1]
        self._past = self._past * 2 if grew else 1
        return self._past

    def stored(self, call: int, grains: int, outputs: Sequence[OutputReport]) -> None:
        """What Grains made is held until it is released; `grains` of them have ended with it."""
        size = slots = 0
        for output in outputs:
            slots += output.slots
            size += self._stocks.add(call, output)
        self.values.held[call] += slots
        self.bytes.held[call] += size
        self.values.learn(call, max(grains, 0), slots)
        self.bytes.learn(call, max(grains, 0), size)
        held = sum(self.bytes.held)
        if held > self.peak_bytes:
            self.peak_bytes = held

    def released(self, slot: int, n: int) -> None:
        """Stored values have had their last reader. Slots of source rows are nobody's."""
        for stock, k in self._stocks.holding(slot, n):
            self.values.held[stock.call] -= k
            self.bytes.held[stock.call] -= stock.let_go(k)


def _in_a_round(pool: Pool, most_held: int) -> int:
    """How many Grains a pool's workers hold at the most."""
    held = pool.concurrency if pool.is_concurrent else pool.batch_size * most_held
    return pool.replicas * held


def _values_unknown(call: Call) -> float:
    return float(sum(UNKNOWN_CHILDREN if depth else 1 for depth in call.list_depths))


def _bytes_unknown(bound: Bound, pool: Pool) -> float:
    # A guess must not keep workers idle: by it a batch at each takes half of the bound at most.
    bytes_ = math.inf if bound.bytes is None else bound.bytes
    stage_bytes = math.inf if pool.max_pending_mb is None else pool.max_pending_mb * MIB
    a_round = bytes_ / (2 * _in_a_round(pool, 1))
    return min(UNKNOWN_BYTES, bytes_ / 8, stage_bytes / 8, a_round)


@dataclass(slots=True)
class _Stock:
    """Consecutive slots from `first` to `end`, `live` of them not yet released, and the bytes they
    still stand for: all until the last is released or, where `parted`, in proportion."""

    first: int
    end: int
    call: int
    size: int
    parted: bool
    live: int

    def let_go(self, k: int) -> int:
        """The bytes that go with k of the values."""
        live = self.live
        self.live = live - k
        if k == live:
            return self.size
        part = self.size * k // live if self.parted else 0
        self.size -= part
        return part


class _Stocks:
    """Which slots stand for how much. Slots ascend and are never used again."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stocks: list[_Stock] = []
        self._compact_at = 2048

    def add(self, call: int, output: OutputReport) -> int:
        """What an output has stored; returns its bytes."""
        slot, total = output.first_slot, 0
        for n, size, parted in output.sizes or ((output.slots, 0, True),):
            if n:
                self._put(_Stock(slot, slot + n, call, size, parted, n))
                slot += n
                total += size
        return total

    def _put(self, stock: _Stock) -> None:
        if len(self._starts) > self._compact_at:
            self._compact()
        starts = self._starts
        if not starts or starts[-1] < stock.first:
            starts.append(stock.first)
            self._stocks.append(stock)
            return
        at = bisect_right(starts, stock.first)
        starts.insert(at, stock.first)
        self._stocks.insert(at, stock)

    def holding(self, slot: int, n: int) -> Sequence[tuple[_Stock, int]]:
        """What stands for slots, and for how many of them."""
        at, end = bisect_right(self._starts, slot) - 1, slot + n
        if at >= 0 and end <= self._stocks[at].end:
            return ((self._stocks[at], n),)
        found: list[tuple[_Stock, int]] = []
        at = max(at, 0)
        while at < len(self._starts) and self._starts[at] < end:
            stock = self._stocks[at]
            k = min(end, stock.end) - max(slot, stock.first)
            if k > 0:
                found.append((stock, k))
            at += 1
        return found

    def _compact(self) -> None:
        self._stocks = [stock for stock in self._stocks if stock.live]
        self._starts = [stock.first for stock in self._stocks]
        self._compact_at = max(2048, 2 * len(self._starts))
