"""What a stage's workers are given besides its code: environment, place, set-up."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch_prefect import Engine, Program, program, run_local, stage
from rayorch_prefect.errors import DoesNotFit, StageStartError, UsageError
from rayorch_prefect.execution.environments import environment
from rayorch_prefect.execution.in_use import LOCK
from rayorch_prefect.program import StageOptions
from tests.execution.conftest import Notes

GREETING = "RAYORCH_TEST_GREETING"


def variable(name: str) -> str:
    return os.environ.get(name, "unset")


def reading(options: StageOptions) -> Program:
    @program
    def reads(row: Any) -> Any:
        return stage(variable, **options)(row)

    return reads


def values(engine: Engine, *rows: Any) -> list[Any]:
    found = {parent.index: parent.value() for parent in engine.run(rows)}
    return [found[index] for index in range(len(rows))]


def this_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


def test_a_stage_has_a_runtime_env_and_a_place_of_its_own(cluster: str) -> None:
    options: StageOptions = {
        "runtime_env": {"env_vars": {GREETING: "good night"}},
        "label_selector": {"ray.io/node-id": this_node(), "region": "!in(eu,us)"},
    }
    with Engine(reading(options)) as engine:
        assert values(engine, GREETING) == ["good night"]


@pytest.mark.parametrize("selector", ["there", "!{}", "in(here,there)", "!in({},there)"])
def test_labels_that_no_node_has_are_said_before_the_start(cluster: str, selector: str) -> None:
    wanted = selector.format(this_node())
    with pytest.raises(DoesNotFit, match=r"stage variable: no node has the labels.*node-id"):
        Engine(reading({"label_selector": {"ray.io/node-id": wanted}})).__enter__()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"runtime_env": {"env_vars": {"A": 1}}}, "env_vars"),
        ({"runtime_env": {"working_dir": "/no/such/folder"}}, "/no/such/folder"),
        ({"label_selector": {"region": "!in(eu"}}, "in.eu"),
    ],
)
def test_what_ray_does_not_take_names_the_stage(
    cluster: str, options: StageOptions, said: str
) -> None:
    with pytest.raises(StageStartError, match=rf"stage variable: .*{said}"):
        Engine(reading(options)).__enter__()


def shout(value: str, name: str) -> str:
    return f"{value} {os.environ.get(name, 'unset')}"


def test_an_engines_runtime_env_reaches_a_ray_that_is_connected_already(cluster: str) -> None:
    of_all, of_stage = "RAYORCH_TEST_ALL", {"env_vars": {GREETING: "of the stage"}}
    given = {"env_vars": {of_all: "of the engine", GREETING: "of the engine"}}
    with Engine(reading({"runtime_env": of_stage}), runtime_env=given) as engine:
        assert values(engine, of_all, GREETING) == ["of the engine", "of the stage"]
        (parent,) = engine.run(["nothing"])
        assert engine.apply(shout, parent, of_all).result(60) == "unset of the engine"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"working_dir": "."}, r"local working_dir \(\.\).*ray\.init\(runtime_env="),
        ({"py_modules": ["s3://lake/a.zip", "."]}, r"local py_modules \(\.\)"),
        ({"env_vars": {"A": 1}}, "runtime_env is not one that Ray takes"),
    ],
)
def test_an_environment_that_cannot_be_had_is_refused(
    cluster: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        Engine(reading({}), runtime_env=given).__enter__()


def test_a_working_dir_is_a_folder_or_an_address(tmp_path: Path) -> None:
    assert environment() == {}
    assert environment(str(tmp_path), {"pip": ["a"]}) == {
        "working_dir": str(tmp_path),
        "pip": ["a"],
    }
    assert environment("s3://lake/code.zip") == {"working_dir": "s3://lake/code.zip"}
    with pytest.raises(UsageError, match="nowhere' is not a folder"):
        environment(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="given twice"):
        environment(str(tmp_path), {"working_dir": "s3://lake/code.zip"})


class Ready:
    """Says how often its node had been set up when it was built."""

    def __init__(self, notes: Notes) -> None:
        self.seen = [line for line in notes.lines() if line == "set up"]
        notes.add(f"built by {os.getpid()}")

    def __call__(self, rows: list[int]) -> list[int]:
        return [len(self.seen) for _ in rows]


def prepared(notes: Notes, fails: bool = False) -> Program:
    def set_up() -> None:
        time.sleep(0.5)  # time enough for the other worker to come by
        notes.add("set up")
        if fails:
            raise OSError("no room for the model")

    @program
    def prepares(row: Any) -> Any:
        return stage(Ready, replicas=2, node_setup=set_up)(notes)(row)

    return prepares


def test_a_node_is_set_up_once_before_any_worker_of_the_stage(cluster: str, notes: Notes) -> None:
    with Engine(prepared(notes)) as engine:
        assert values(engine, *range(8)) == [1] * 8
    lines = notes.lines()
    assert lines[0] == "set up"
    assert len(lines) == len(set(lines)) == 3


def test_marks_of_dead_runs_are_swept_where_a_node_is_set_up(cluster: str, notes: Notes) -> None:
    root = Path(tempfile.gettempdir()) / f"rayorch-prefect-{os.getuid()}"
    dead = root / "session_dead" / "01000000" / "node"
    dead.mkdir(parents=True)
    for name in ("x.done", "x.lock", LOCK):
        (dead / name).touch()
    os.utime(dead / LOCK, (0, 0))
    with Engine(prepared(notes)) as engine:
        assert values(engine, 1) == [1]
        assert not (root / "session_dead").exists()
        own = root / ray.get_runtime_context().get_session_name()
        assert list(own.rglob("*.done"))


def test_a_set_up_in_this_process_is_done_once(notes: Notes) -> None:
    assert [parent.value() for parent in run_local(prepared(notes), range(3))] == [1, 1, 1]
    assert notes.lines().count("set up") == 1


def test_a_set_up_that_fails_is_like_a_constructor_that_does(cluster: str, notes: Notes) -> None:
    with pytest.raises(StageStartError, match=r"stage Ready: .*OSError: no room for the model"):
        Engine(prepared(notes, fails=True)).__enter__()
    assert set(notes.lines()) == {"set up"}
