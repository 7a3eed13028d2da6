"""Runs in an Engine: streaming, sharing, leaving, giving up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import ray
from ray._private import state

from rayorch_prefect import Engine, F, Parent, Program, Run, program, run_local, stage
from rayorch_prefect.errors import EngineClosed, UsageError
from tests.execution.conftest import Notes, alive_actors, eventually


def numbers(row: int) -> list[int]:
    return list(range(row))


def waiting(notes: Notes, replicas: int = 1) -> Program:
    """A row n becomes its children 0..n-1; a child 9 waits until "go" is noted."""

    def work(child: int) -> int:
        notes.add(f"child {child}")
        time.sleep(0.01)  # long enough that one batch, not a call of several, waits behind it
        while child == 9 and "go" not in notes.lines():
            time.sleep(0.02)
        return child

    @program
    def waits(row: Any) -> Any:
        worked = stage(work, replicas=replicas)(F.expand(stage(numbers)(row), domain="child"))
        return F.reduce(worked)

    return waits


def slow_to_build() -> Program:
    class Slow:
        def __init__(self) -> None:
            time.sleep(60)

        def __call__(self, rows: list[int]) -> list[int]:
            return rows

    @program
    def slowly(row: Any) -> Any:
        return stage(Slow)()(row)

    return slowly


def doubling(batch_size: int = 4) -> Program:
    @program
    def doubles(row: Any) -> Any:
        return stage(lambda row: row * 2, batch_size=batch_size)(row)

    return doubles


def test_a_start_that_is_given_up_waits_for_no_worker_that_is_being_built(cluster: str) -> None:
    engine = Engine(slow_to_build())
    given_up_at: list[float] = []

    def give_up() -> None:
        given_up_at.append(time.monotonic())
        engine.give_up()

    threading.Timer(1.0, give_up).start()
    with pytest.raises(EngineClosed, match="was given up"), engine:
        pass
    assert time.monotonic() - given_up_at[0] < 4


def test_an_engine_that_was_given_up_before_starts_no_worker(cluster: str) -> None:
    before = set(state.actors())
    engine = Engine(slow_to_build())
    engine.give_up()
    with pytest.raises(EngineClosed, match="was given up"), engine:
        pass
    assert set(state.actors()) == before


def test_a_short_parent_comes_while_a_long_one_works(cluster: str, notes: Notes) -> None:
    with Engine(waiting(notes, replicas=2)) as engine:
        run = engine.submit([10, 2, 0])
        early = [next(run), next(run)]
        assert sorted(parent.index for parent in early) == [1, 2]
        assert "go" not in notes.lines()
        notes.add("go")
        (last,) = run
        values = {parent.index: parent.value() for parent in (*early, last)}
    assert values == {0: list(range(10)), 1: [0, 1], 2: []}
    assert all(parent.started <= parent.finished for parent in early)


def test_several_microbatches_from_several_threads(cluster: str) -> None:
    found: dict[int, list[Any]] = {}
    with Engine(doubling()) as engine:

        def one(number: int) -> None:
            rows = [number * 100 + i for i in range(25)]
            run = engine.submit(rows)
            found[number] = sorted((parent.row, parent.value()) for parent in run)

        in_threads([partial(one, number) for number in range(5)])
        metrics = engine.metrics

    assert found == {
        number: [(row, 2 * row) for row in range(number * 100, number * 100 + 25)]
        for number in range(5)
    }
    (call,) = metrics.calls
    assert (call.grains, call.failed, call.ready, call.in_flight) == (125, 0, 0, 0)
    assert 125 / 4 <= call.batches <= 125
    assert call.fill == pytest.approx(125 / (4 * call.batches))
    assert call.busy_s > 0
    assert (metrics.retries, metrics.stale_reports, metrics.workers_lost) == (0, 0, 0)


def in_threads(jobs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_run_iterated_by_several_threads_gives_each_parent_once(cluster: str) -> None:
    with Engine(doubling()) as engine:
        run = engine.submit(range(200))
        seen: list[int] = []
        in_threads([lambda: seen.extend(parent.index for parent in run)] * 4)
    assert sorted(seen) == list(range(200))


def test_on_parent_gets_each_parent_on_the_engines_thread(cluster: str) -> None:
    came: list[tuple[str, Any]] = []
    with Engine(doubling()) as engine:

        def take(parent: Parent | BaseException) -> None:
            came.append((threading.current_thread().name, parent))

        engine.submit(["a", "b"], keys=["first", "second"], on_parent=take)
        eventually(lambda: len(came) == 2)
        keys = {parent.key: parent.value() for _, parent in came}
    assert keys == {"first": "aa", "second": "bb"}
    assert {name for name, _ in came} == {"rayorch-engine"}


def test_an_on_parent_that_raises_ends_only_its_own_run(
    cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def bad(parent: Parent | BaseException) -> None:
        asked.append(parent)
        raise RuntimeError("Event loop is closed")

    with Engine(doubling(batch_size=1)) as engine:
        engine.submit(range(20), on_parent=bad)
        assert len(list(engine.run(range(20)))) == 20
        assert len(asked) == 1
    assert "on_parent of microbatch 0 raised; it is abandoned" in caplog.text
    assert "Event loop is closed" in caplog.text


def test_an_abandoned_run_starts_nothing_more_and_ends_who_waits(
    cluster: str, notes: Notes
) -> None:
    with Engine(waiting(notes)) as engine:
        run = engine.submit([10, 10, 10])
        waits = threading.Thread(target=lambda: notes.add(f"got {len(list(run))}"))
        waits.start()
        eventually(lambda: "child 9" in notes.lines())
        before = Counter(notes.lines())
        run.abandon()
        waits.join(20)
        assert not waits.is_alive()
        assert "got 0" in notes.lines()
        assert list(run) == []
        notes.add("go")
        assert [parent.value() for parent in engine.run([3])] == [[0, 1, 2]]
        after = Counter(notes.lines()) - before
        # At most the batch that waited at the worker, and then the run that came later.
        assert sum(n for line, n in after.items() if line.startswith("child")) in (3, 4)
        assert engine.metrics.dropped_rows + engine.metrics.stale_reports >= 1
        eventually(lambda: no_blocks(engine))


def no_blocks(engine: Engine) -> bool:
    assert engine._driver is not None
    return len(engine._driver.blocks) == 0


def test_leaving_the_loop_of_run_abandons_it(cluster: str, notes: Notes) -> None:
    notes.add("go")
    with Engine(waiting(notes)) as engine:
        for _ in engine.run([2] * 50):
            break
        assert engine._driver is not None
        eventually(lambda: engine._driver.active == 0)  # type: ignore[union-attr]
        assert len(notes.lines()) < 60


def test_leaving_with_runs_open_says_so_to_all(cluster: str, notes: Notes) -> None:
    ends: list[BaseException] = []
    before = alive_actors()
    with Engine(waiting(notes)) as engine:
        run, quiet = engine.submit([10, 10]), engine.submit([10])
        called: list[Any] = []
        engine.submit([10], on_parent=called.append)
        eventually(lambda: "child 9" in notes.lines())
        waits = [threading.Thread(target=lambda: ends.append(error_of(run))) for _ in range(2)]
        for thread in waits:
            thread.start()
        assert alive_actors() - before
        leaving = time.monotonic()
    for thread in waits:
        thread.join(20)
    ends.append(error_of(quiet))
    ends.append(called[0])
    assert len(ends) == 4
    assert {type(error) for error in ends} == {EngineClosed}
    assert len(called) == 1
    # The busy worker is not waited for without end.
    assert time.monotonic() - leaving < 60
    eventually(lambda: alive_actors() <= before)


def error_of(run: Run) -> BaseException:
    with pytest.raises(EngineClosed) as raised:
        list(run)
    return raised.value


def test_before_and_after_there_is_no_engine(cluster: str) -> None:
    engine = Engine(doubling())
    with pytest.raises(EngineClosed, match="enter the Engine first"):
        engine.submit([1])
    with pytest.raises(EngineClosed, match="enter the Engine first"):
        _ = engine.metrics
    with engine:
        assert list(engine.submit([])) == []
        assert list(engine.run([])) == []
    with pytest.raises(EngineClosed, match="has been left"):
        engine.submit([1])
    with pytest.raises(EngineClosed, match="entered once"):
        engine.__enter__()
    assert engine.metrics.calls[0].grains == 0


def test_wrong_rows_and_keys_are_refused(cluster: str) -> None:
    with Engine(doubling()) as engine:
        with pytest.raises(UsageError, match="row 1 cannot be pickled: a lock: TypeError"):
            engine.submit([1, threading.Lock()])
        with pytest.raises(UsageError, match="2 keys for 1 rows"):
            engine.submit([1], keys=["a", "b"])
        with pytest.raises(UsageError, match="rows is None; expected source rows"):
            list(engine.run(None))  # type: ignore[arg-type]
        assert len(list(engine.run([1]))) == 1
        with pytest.raises(UsageError, match="the path is 1; expected ordinals from 0"):
            engine.story("row 0", 1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="row 0 cannot be pickled: a lock"):
        list(run_local(doubling(), [threading.Lock()]))


def test_local_classes_close_and_a_shared_pool(cluster: str, notes: Notes) -> None:
    offset = 5

    class Local:
        def __init__(self, factor: int) -> None:
            notes.add("built")
            self.factor = factor

        def __call__(self, rows: list[int]) -> list[int]:
            return [row * self.factor + offset for row in rows]

        def close(self) -> None:
            notes.add("closed")

    def local(replicas: int) -> Program:
        @program
        def locally(row: Any) -> Any:
            both = stage(Local, replicas=replicas, batch_size=2)(2)
            return both(both(row))

        return locally

    with Engine(local(2)) as engine:
        assert {parent.row: parent.value() for parent in engine.run([1, 2])} == {1: 19, 2: 23}
        assert [call.stage for call in engine.metrics.calls] == ["Local", "Local"]
    assert notes.lines() == ["built"] * 2 + ["closed"] * 2
    assert [parent.value() for parent in run_local(local(1), [1])] == [19]
    assert notes.lines()[4:] == ["built", "closed"]


def test_a_close_that_raises_is_logged_and_holds_nothing_up(
    cluster: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Sticky:
        def __call__(self, rows: list[int]) -> list[int]:
            return rows

        def close(self) -> None:
            raise OSError("device busy")

    @program
    def sticky(row: Any) -> Any:
        return stage(Sticky)()(row)

    with Engine(sticky) as engine:
        assert len(list(engine.run([1]))) == 1
    said = "stage Sticky: close() of a worker raised: device busy"
    assert caplog.text.count(said) == 1
    assert len(list(run_local(sticky, [1]))) == 1
    assert caplog.text.count(said) == 2


def test_a_defect_of_ours_reaches_whoever_asks(cluster: str) -> None:
    """A loop that broke must not leave callers waiting for ever."""
    with Engine(doubling()) as engine:
        assert engine._driver is not None
        run = engine.submit([1])
        engine._driver.blocks.address = _defect  # type: ignore[assignment]
        later = engine.submit([2])
        for one in (later, engine.submit([3])):
            with pytest.raises(Exception, match="a defect"):
                list(one)
        del run
    assert ray.is_initialized()


def _defect(*_: Any) -> Any:
    raise AssertionError("a defect")
