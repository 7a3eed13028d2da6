"""Short batches travel together: how many, and that nothing is lost or held up by it."""

from __future__ import annotations

import inspect
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import cloudpickle
import pytest

from rayorch_prefect import Engine, F, Program, program, stage
from rayorch_prefect.execution import paces, worker_actor
from rayorch_prefect.execution.blocks import Recipe
from rayorch_prefect.execution.codec import encode
from rayorch_prefect.execution.departure import Departures
from rayorch_prefect.execution.log_lines import OFF
from rayorch_prefect.execution.messages import BatchMessage, Built
from rayorch_prefect.execution.paces import Paces
from rayorch_prefect.execution.shared_calls import MOST_BYTES, SharedCalls
from rayorch_prefect.execution.specs import build_order
from rayorch_prefect.execution.versions import own_versions
from rayorch_prefect.execution.wire import pack_batch
from rayorch_prefect.execution.worker_actor import WorkerActor
from rayorch_prefect.model.events import WorkersMayHold
from tests.execution.conftest import Notes, eventually

CHILDREN = 3_000


def one_pool(**options: Any) -> Any:
    def same(row: int) -> int:
        return row

    @program(version="1")
    def short(source: Any) -> Any:
        return stage(same, **options)(source)

    return short.plan


# -- how many share -------------------------------------------------------------------------------


def paced(seconds: float, size: int = 100, plan: Any = None, n: int = paces.LOOKED_AT) -> Paces:
    found = Paces(plan or one_pool(), 2, shares=True)
    for _ in range(n):
        found.ran(0, seconds, size)
    return found


@pytest.mark.parametrize(
    ("seconds", "together"), [(0.0, 8), (0.0009, 8), (0.0015, 4), (0.003, 2), (0.005, 1), (1.0, 1)]
)
def test_the_shorter_the_more_share_a_call(seconds: float, together: int) -> None:
    assert paced(seconds).together(0) == together


@pytest.mark.parametrize(("size", "together"), [(8_000, 8), (10_000, 4), (30_000, 2), (60_000, 1)])
def test_and_the_smaller(size: int, together: int) -> None:
    assert paced(0.0, size).together(0) == together


def test_not_before_some_were_seen() -> None:
    assert paced(0.0, n=paces.LOOKED_AT - 1).together(0) == 1


@pytest.mark.parametrize(
    "options", [{"batch_limit_s": 5}, {"row_limit_s": 5}], ids=["of a batch", "of a row"]
)
def test_none_with_a_limit_of_time(options: dict[str, Any]) -> None:
    assert paced(0.0, plan=one_pool(**options)).together(0) == 1


def test_one_batch_at_a_worker_shares_none() -> None:
    found = Paces(one_pool(), 1, shares=False)
    assert not any(found.ran(0, 0.0, 1) for _ in range(20))
    assert found.together(0) == 1


def test_after_a_long_one_or_a_death_they_go_alone_for_a_while() -> None:
    found = paced(0.0)
    assert found.ran(0, 1.0, 1) == [WorkersMayHold(0, 2)]
    told = [found.ran(0, 0.0, 1) for _ in range(paces.ALONE + paces.LOOKED_AT)]
    assert not any(told[: paces.ALONE - 1])
    assert [WorkersMayHold(0, 16)] in told

    assert found.alone(0) == [WorkersMayHold(0, 2)]
    assert found.alone(0) == [], "that is no change"
    assert found.together(0) == 1


def test_what_was_tried_before_goes_alone() -> None:
    found = paced(0.0)
    again = batch(0.0, alone=True)
    assert found.leaves(again, 0.0) == 1
    assert not again.shares
    assert found.next == float("inf")


def test_a_pool_with_children_in_portions_shares_none() -> None:
    def upto(n: int) -> Iterator[int]:
        yield from range(n)

    def is_some(n: int) -> bool:
        return n > 0

    @program(version="1")
    def both_ways(source: Any) -> Any:
        count = stage(upto)
        some = F.expand(count(source), domain="one")
        more = F.expand(F.filter(count(some), stage(is_some)(some)), domain="other")
        return F.reduce(F.reduce(more))

    chunked = [bool(call.chunked) for call in both_ways.plan.calls]
    assert chunked == [True, False, False]
    found = paced(0.0, plan=both_ways.plan)
    assert found.together(0) == 1


def batch(since: float, alone: bool = False) -> Recipe:
    return Recipe(0, 1, (), (), (), since, alone=alone)


def test_a_batch_that_is_away_for_long_is_seen() -> None:
    found, away, ahead = paced(0.0), batch(1.0), batch(1.9)
    assert found.next == float("inf"), "nothing is away"
    assert found.leaves(away, 1.0) == found.leaves(ahead, 1.9) == 8
    assert found.next == 1.0 + paces.AWAY_S
    assert found.late(1.0 + paces.AWAY_S / 2, [batch(-9.0)]) == []
    assert found.late(2.0, [ahead]) == []
    assert found.late(3.0, [batch(2.9), away]) == [0]
    found.alone(0)
    assert found.late(4.0, [ahead]) == [0], "it may be in the same call"
    assert found.late(5.0, [batch(0.0)]) == []
    assert found.next == float("inf")


# -- when a call leaves ---------------------------------------------------------------------------


class Sent:
    """What left, and for whom."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        self.shared = SharedCalls(self._leaves)

    def _leaves(self, worker: int, batches: Any, packed: Any) -> None:
        assert len(batches) == len(packed)
        self.calls.append((worker, list(batches)))
        self.shared.sent(worker, len(batches))


def test_a_call_leaves_when_it_is_full() -> None:
    sent = Sent()
    for batch in range(5):
        sent.shared.add(7, batch, b"-", 4)
    assert sent.calls == [(7, [0, 1, 2, 3])]


def test_or_its_worker_has_fewer_than_two() -> None:
    sent = Sent()
    for batch in range(3):
        sent.shared.add(7, batch, b"-", 4)
        sent.shared.flush()
    assert sent.calls == [(7, [0]), (7, [1])]
    sent.shared.over(7)
    sent.shared.flush()
    assert sent.calls == [(7, [0]), (7, [1]), (7, [2])]


def test_or_it_grows_large() -> None:
    sent = Sent()
    for batch in range(3):
        sent.shared.add(7, batch, bytes(MOST_BYTES // 2), 8)
    assert sent.calls == [(7, [0, 1])]


def test_what_goes_alone_passes_nothing() -> None:
    sent = Sent()
    sent.shared.add(7, 0, b"-", 4)
    sent.shared.add(8, 1, b"-", 4)
    sent.shared.leave(7)
    assert sent.calls == [(7, [0])]


def test_what_waited_for_a_worker_that_is_gone_goes_nowhere() -> None:
    sent = Sent()
    sent.shared.add(7, 0, b"-", 4)
    sent.shared.forget(7)
    sent.shared.flush()
    assert sent.calls == []


def test_it_is_known_whether_a_worker_is_at_one_of_several() -> None:
    sent = Sent()
    sent.shared.sent(7, 1)
    for batch in range(2):
        sent.shared.add(7, batch, b"-", 2)
    assert not sent.shared.shares(7)
    sent.shared.over(7)
    assert sent.shared.shares(7)
    assert not sent.shared.shares(8)


# -- on Ray ---------------------------------------------------------------------------------------


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many calls carried how many batches."""
    found: Counter[int] = Counter()
    before = SharedCalls.sent

    def counted(self: SharedCalls, worker: int, batches: int) -> None:
        found[batches] += 1
        before(self, worker, batches)

    monkeypatch.setattr(SharedCalls, "sent", counted)
    return found


def numbers(n: int) -> list[int]:
    return list(range(n))


def listing(work: Any, **options: Any) -> Program:
    @program(version="1")
    def listing(source: Any) -> Any:
        children = F.expand(stage(numbers)(source), domain="number")
        return F.reduce(stage(work, replicas=2, num_cpus=0.1, **options)(children))

    return listing


def doubled(n: int) -> int:
    return 2 * n


@pytest.mark.usefixtures("cluster")
def test_short_batches_share_calls(sizes: Counter[int]) -> None:
    with Engine(listing(doubled, batch_size=4)) as engine:
        parents = list(engine.run([CHILDREN, 5, 0, CHILDREN]))
        read = engine.metrics.calls[1]

    for parent in parents:
        assert parent.value() == [2 * n for n in range(parent.row)]
    assert read.fill > 0.99
    assert max(sizes) == paces.MOST_TOGETHER
    assert sum(sizes.values()) < read.batches / 2


@pytest.mark.usefixtures("cluster")
def test_with_one_batch_at_a_worker_none_does(sizes: Counter[int]) -> None:
    with Engine(listing(doubled, batch_size=4), batches_at_worker=1) as engine:
        (parent,) = engine.run([200])
    assert parent.value() == [2 * n for n in range(200)]
    assert set(sizes) == {1}


class Lethal:
    """One row of them ends its process."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, rows: list[int]) -> list[int]:
        if 2_000 in rows:
            self.notes.add(len(rows))
            os._exit(1)
        return rows


@pytest.mark.usefixtures("cluster")
def test_a_death_in_a_shared_call_costs_the_culprit_alone(
    notes: Notes, sizes: Counter[int]
) -> None:
    @program(version="1")
    def forgiving(source: Any) -> Any:
        children = F.expand(stage(numbers)(source), domain="number")
        lethal = stage(Lethal, replicas=2, batch_size=4, num_cpus=0.1)(notes)
        return F.reduce(lethal(children), on_failure="skip")

    with Engine(forgiving) as engine:
        (parent,) = engine.run([CHILDREN])

    assert max(sizes) > 1
    assert parent.value() == [n for n in range(CHILDREN) if n != 2_000]
    (gap,) = parent.gaps
    assert gap.path == (2_000,)
    assert gap.cause is not None
    assert (gap.cause.type, gap.cause.attempts) == ("WorkerDied", 3)
    # Together, unless the machine was so slow that it went alone; in its batch, in half of it, then
    # three times alone.
    assert sorted(map(int, notes.lines())) in ([1, 1, 1, 2, 4, 4], [1, 1, 1, 2, 4])


SLOW_S = 4.0


def rarely_slow(row: int) -> int:
    if row == 1_000:
        time.sleep(SLOW_S)
    return row


@pytest.mark.usefixtures("cluster")
def test_a_batch_that_is_not_short_holds_nobody_up(sizes: Counter[int]) -> None:
    @program(version="1")
    def rows(source: Any) -> Any:
        return stage(rarely_slow, replicas=2, batch_size=1, num_cpus=0.1)(source)

    with Engine(rows) as engine:
        came = [(time.monotonic(), parent.value()) for parent in engine.run(range(1_200))]

    assert max(sizes) > 1
    assert sorted(value for _, value in came) == list(range(1_200))
    (before, _), (last, slowest) = came[-2:]
    assert slowest == 1_000
    assert last - before > SLOW_S / 4, "others came no sooner than the slow one"


LONG_S = 0.6


def long_at_the_end(row: int) -> int:
    time.sleep(LONG_S if row >= 400 else 0)
    return row


@pytest.mark.usefixtures("cluster")
def test_batches_that_turn_out_long_come_one_by_one(sizes: Counter[int]) -> None:
    @program(version="1")
    def rows(source: Any) -> Any:
        return stage(long_at_the_end, batch_size=1, num_cpus=0.1)(source)

    with Engine(rows) as engine:
        came = [(time.monotonic(), parent.value()) for parent in engine.run(range(410))]

    assert max(sizes) > 1
    assert [value for _, value in came] == list(range(410))
    times = [when for when, _ in came[400:]]
    assert sum(later - sooner > LONG_S / 4 for sooner, later in pairwise(times)) >= 8


class LongAtTheEnd:
    """Notes when it is closed."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, rows: list[int]) -> list[int]:
        if rows[0] == 400:
            self.notes.add("long")
        return [long_at_the_end(row) for row in rows]

    def close(self) -> None:
        self.notes.add("closed")


@pytest.mark.usefixtures("cluster")
def test_what_waits_in_a_call_is_not_waited_for_when_the_engine_is_left(
    notes: Notes, sizes: Counter[int]
) -> None:
    @program(version="1")
    def rows(source: Any) -> Any:
        return stage(LongAtTheEnd, batch_size=1, num_cpus=0.1)(notes)(source)

    with Engine(rows) as engine:
        engine.submit(range(420))
        eventually(lambda: notes.lines() == ["long"])
    assert max(sizes) > 1
    assert notes.lines() == ["long", "closed"]


class Mute:
    """Once, its worker cannot say what came of a call."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def __call__(self, rows: list[int]) -> list[int]:
        calls = [info.frame for info in inspect.stack(0) if info.function == "run_together"]
        if rows[0] > 300 and calls and self.notes.first_time("mute"):
            calls[0].f_locals["self"].hand_over = too_much
        return rows


def too_much() -> bytes:
    raise MemoryError("too much to say")


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_cannot_say_what_came_of_a_call_charges_nobody(
    notes: Notes, sizes: Counter[int]
) -> None:
    @program(version="1")
    def rows(source: Any) -> Any:
        return stage(Mute, batch_size=1, num_cpus=0.1, retry_budget=1)(notes)(source)

    with Engine(rows) as engine:
        values = [parent.value() for parent in engine.run(range(600))]
        lost = engine.metrics.workers_lost
    assert max(sizes) > 1
    assert sorted(values) == list(range(600))
    assert lost == 1


def grown(row: int) -> bytes:
    return bytes(row)


def packed(row: int) -> bytes:
    return pack_batch(BatchMessage(row, 0, 1, ((("R", 0, 0, 1),),), (encode([row]).small,), (), 0))[
        0
    ]


@pytest.mark.usefixtures("cluster")
def test_the_next_call_waits_until_what_is_large_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @program(version="1")
    def rows(source: Any) -> Any:
        return stage(grown)(source)

    monkeypatch.setattr(worker_actor, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(Departures, "expect", lambda self: None)  # nothing leaves this process
    worker = WorkerActor()
    order = cloudpickle.dumps(build_order(rows.plan, rows.plan.pools[0]))
    assert isinstance(worker.build(own_versions(), order, [], OFF), Built)
    calls = [
        pickle.dumps([packed(row) for row in rows]) for rows in ((300_000, 400_000), (500_000,))
    ]

    (first, _), (second, _) = pickle.loads(worker.run_together(calls[0]))
    with ThreadPoolExecutor() as threads:
        following = threads.submit(worker.run_together, calls[1])
        worker.collect(first)
        with pytest.raises(TimeoutError):
            following.result(0.3)
        _, large = worker.collect(second)
        assert len(pickle.loads(following.result(30))) == 1
    assert len(large) == 1
