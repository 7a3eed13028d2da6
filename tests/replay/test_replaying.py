"""A recorded run, and the same run again from its file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from rayorch_prefect.errors import IllegalEvent, InternalError, UsageError
from rayorch_prefect.execution.driver import Driver
from rayorch_prefect.model.events import DispatchBatch, Event, RowsReleased, WorkerReady
from rayorch_prefect.replay.plans import plain_plan, plan_from
from rayorch_prefect.replay.recorder import Recorder
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.replay.replaying import Replay, ReplayDiffers
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.digest import state_digest
from rayorch_prefect.scheduler.policies import POLICIES, LongestFirst
from rayorch_prefect.scheduler.telling import story_of
from tests.replay.recorded import events_of, locally, replayed, simulated, write
from tests.scheduler import invariants
from tests.scheduler.defects import DEFECTS
from tests.scheduler.recipes import build, numbered_recipe
from tests.scheduler.scenes import Scene, pages_read

# The first three have all kinds of events, as long as recipes stay as they are.
EXAMPLES = (34, 28, 40, *range(200))


def test_simulated_runs_with_every_kind_of_event_are_replayed_to_the_same_state(
    tmp_path: Path,
) -> None:
    met: set[type] = set()
    runs = filter(None, map(simulated, EXAMPLES))
    for number, run in enumerate(runs):
        path = tmp_path / str(number)
        live = write(run, path)
        replay = replayed(path)
        assert replay.number == len(run.log) + 1
        assert replay.state() == state_digest(live) == replay.recording.state
        assert events_of(path) == [event for event, _ in run.log]
        met.update(type(event) for event, _ in run.log)
        if number > 2 and met == set(get_args(Event)):
            return
    raise AssertionError(f"never met: {set(get_args(Event)) - met}")


def test_every_grain_has_a_story_that_names_all_its_batches(tmp_path: Path) -> None:
    stories = 0
    for number, run in enumerate(filter(None, map(simulated, EXAMPLES[:4]))):
        write(run, tmp_path / str(number))
        replay = Replay(Recording(tmp_path / str(number)))
        sent: Counter[tuple[int, int, int]] = Counter()
        for until, (_, instructions) in enumerate(run.log, start=2):
            replay.run(until)
            orders = [one for one in instructions if isinstance(one, DispatchBatch)]
            for order in orders:
                for microbatch, first, end in order.ranges:
                    sent.update((microbatch, order.call, one) for one in range(first, end))
            for microbatch, call, entity in list(sent)[-3:]:
                told = story_at(replay.scheduler, microbatch, call, entity)
                if told is not None:
                    stories += 1
                    lines = told.partition(f"(Call {call}): ")[2].partition(" (Call ")[0]
                    assert "not all of it is remembered" not in told
                    assert lines.count("sent in batch") == sent[microbatch, call, entity]
    assert stories > 100


def story_at(scheduler: Scheduler, microbatch: int, call: int, entity: int) -> str | None:
    """A Grain's story; None if its microbatch was never told of again."""
    known = {**{mb.number: mb for mb in scheduler.memory.left}}
    known |= {number: run.mb for number, run in scheduler.runs.items()}
    if microbatch not in known:
        return None
    mb, domain = known[microbatch], scheduler.plan.calls[call].domain
    row, path = mb.root_of(domain, entity), mb.path(domain, entity)
    blocks = story_of(scheduler, microbatch, row, path).split(f"microbatch {microbatch}, row {row}")
    return next(block for block in blocks if f"(Call {call}): " in block)


def test_plans_are_written_without_user_code_and_read_back() -> None:
    for plan in filter(None, map(build, map(numbered_recipe, range(30)))):
        plain = plain_plan(plan)
        assert plain_plan(plan_from(plain)) == plain
        for pool in plain["pools"]:
            assert not {"target", "args", "kwargs", "runtime_env"} & set(pool)


@pytest.mark.parametrize("seed", [3, 4])
def test_a_run_in_this_process_is_replayed_to_the_same_state_and_story(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers: list[Driver] = []
    start = Driver.start

    def noted(self: Driver) -> None:
        drivers.append(self)
        start(self)

    monkeypatch.setattr(Driver, "start", noted)
    assert locally(tmp_path / "run", seed, lost_values=0.05) == 20
    replay = replayed(tmp_path / "run")
    live = drivers[0].scheduler
    assert replay.state() == state_digest(live)
    assert replay.recording.keys == {0: [f"row {i}" for i in range(20)]}
    assert replay.rows_of("row 5") == [(0, 5)]
    for path in [(), (1,), (3,), (2, 1)]:
        told = story_of(replay.scheduler, 0, 5, path)
        assert told == story_of(live, 0, 5, path)
        assert told.count("sent in batch") >= 1


def test_a_replay_stops_where_it_is_told_to(tmp_path: Path) -> None:
    locally(tmp_path / "run")
    whole = replayed(tmp_path / "run")
    replay = Replay(Recording(tmp_path / "run"))
    replay.run(until=10, check=True)
    assert replay.number == 10
    assert replay.scheduler.runs
    assert replay.state() != whole.state()
    replay.run(check=True)
    assert replay.state() == whole.state()


def test_a_defect_of_the_recorded_run_is_there_again_and_found_at_its_first_event(
    tmp_path: Path,
) -> None:
    """The Scheduler forgets to raise the generations of batches that are tried again."""
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        DEFECTS["a_retry_keeps_the_generation"](patch)
        assert locally(path) == 20
        faulty = replayed(path)
    sound = Replay(Recording(path))
    with pytest.raises(ReplayDiffers, match=r"step \d+ \(.*with other contents.*DispatchB") as told:
        sound.run(check=True)
    first = sound.number
    assert f"step {first} " in str(told.value)
    # Up to there both went the same way.
    halves = [Replay(Recording(path)) for _ in range(2)]
    halves[0].run(until=first)
    with pytest.MonkeyPatch.context() as patch:
        DEFECTS["a_retry_keeps_the_generation"](patch)
        halves[1].run(until=first)
        assert halves[1].scheduler.counts.retries == halves[0].scheduler.counts.retries
        halves[1].run()
        assert halves[1].state() == faulty.state()


def test_a_defect_that_no_outcome_shows_is_found_in_a_recording(tmp_path: Path) -> None:
    """All parents of the run ended well; its tables are looked at after each step of a replay."""
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        DEFECTS["the_head_of_a_range_is_taken_twice"](patch)
        assert locally(path) == 20
        assert _first_broken(path) == (1, "a Grain is queued twice")
    assert _first_broken(path) is None


def test_a_run_that_never_ends_is_seen_again_as_it_stood(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        DEFECTS["a_lost_worker_is_not_replaced"](patch)
        with pytest.raises(InternalError, match="parents never completed"):
            locally(path)
        replay = replayed(path)
    counts = replay.scheduler.counts
    assert counts.workers_lost > 0
    assert sum(replay.outcomes.values()) < 20
    assert any(call.ready for call in counts.calls)
    assert not replay.scheduler.workers.flights
    assert "has not ended" in replay.story("row 19")
    sound = Replay(Recording(path))
    with pytest.raises(ReplayDiffers, match=r"WorkerLost.* gave nothing; now StartWorker"):
        sound.run(check=True)


def _first_broken(path: Path) -> tuple[int, str] | None:
    """The first step after which the tables do not agree with each other, and how."""
    replay, done = Replay(Recording(path)), -1
    while replay.number > done:
        done = replay.number
        replay.run(until=done + 1)
        try:
            invariants.check(replay.scheduler)
        except AssertionError as broken:
            return done, str(broken).splitlines()[0]
    return None


def test_a_refused_event_is_refused_again(tmp_path: Path) -> None:
    scene = Scene(pages_read())
    recorder = Recorder(tmp_path / "run")
    recorder.begin(scene.plan, scene.scheduler.options)
    scheduler = Scheduler(scene.plan)
    recorder.given(None)
    recorder.told(scheduler.start())
    recorder.given(WorkerReady(1, 0))
    recorder.told(scheduler.handle(WorkerReady(1, 0)))
    recorder.given(RowsReleased(7, (0,)))
    with pytest.raises(IllegalEvent):
        scheduler.handle(RowsReleased(7, (0,)))
    recorder.close(scheduler)
    replay = replayed(tmp_path / "run")
    (refused,) = replay.refused
    assert (refused.step.number, type(refused.error)) == (2, IllegalEvent)
    assert "microbatch 7 was never admitted" in str(refused.error)


def test_an_error_that_was_none_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locally(tmp_path / "run")

    def crash(self: Scheduler, *_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Scheduler, "_release_rows", crash)
    with pytest.raises(ReplayDiffers, match=r"RowsReleased.*now ZeroDivisionError\('planted'\)"):
        replayed(tmp_path / "run")


def test_another_state_at_the_end_is_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locally(tmp_path / "run")
    monkeypatch.setattr(
        "rayorch_prefect.scheduler.credits.Credits.went", lambda self: setattr(self, "_past", 9)
    )
    with pytest.raises(ReplayDiffers, match=r"all \d+ steps gave .* state at the end is"):
        replayed(tmp_path / "run")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_replayed(policy: str, tmp_path: Path) -> None:
    run = next(filter(None, map(simulated, EXAMPLES)))
    run.scheduler = Scheduler(run.plan, policy=policy)
    recorder = Recorder(tmp_path / "run")
    recorder.begin(run.plan, run.scheduler.options)
    recorder.given(None)
    recorder.told(run.scheduler.start())
    for event in [WorkerReady(100, 0), run.log[0][0]]:
        recorder.given(event)
        recorder.told(run.scheduler.handle(event))
    recorder.close(run.scheduler)
    assert replayed(tmp_path / "run").scheduler.options["policy"] == policy


def test_a_policy_of_their_own_is_handed_over_again(tmp_path: Path) -> None:
    class Mine(LongestFirst):
        pass

    scheduler = Scheduler(Scene(pages_read()).plan, policy=Mine())
    recorder = Recorder(tmp_path / "run")
    recorder.begin(scheduler.plan, scheduler.options)
    recorder.given(None)
    recorder.told(scheduler.start())
    recorder.close(scheduler)
    with pytest.raises(UsageError, match="under its own policy Mine; expected one like it"):
        Replay(Recording(tmp_path / "run"))
    Replay(Recording(tmp_path / "run"), policy=Mine()).run(check=True)


def test_the_plan_of_a_recording_has_no_stages_to_run(tmp_path: Path) -> None:
    locally(tmp_path / "run")
    plan = Recording(tmp_path / "run").plan
    with pytest.raises(UsageError, match="no stages that can be run"):
        plan.pools[0].target.resolve()()
