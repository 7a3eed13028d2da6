"""A stage's class or function arrives in a fresh process."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from rayorch_prefect.errors import StageError
from rayorch_prefect.program import stage
from rayorch_prefect.program.targets import StageTarget
from tests.program.night import Night, Settings, nightly, triple
from tests.program.toys import Shifted, declared

NIGHT = declared(Night)
ROOT = Path(__file__).parents[2]
RUN = """
import pickle, sys
target, args = pickle.loads(sys.stdin.buffer.read())
made = target.resolve()(*args)
print(made if not callable(made) else (made.name(), made([7])))
"""


def run_elsewhere(target: StageTarget, *args: Any) -> str:
    """Build (or call) the target in a fresh process that did not define it."""
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=bytes(cloudpickle.dumps((target, args))),
        cwd="/",
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_decorated_class_travels_by_name() -> None:
    target = StageTarget.of(NIGHT.target)
    assert target.name == "Night"
    assert len(pickle.dumps(target)) < 200
    assert run_elsewhere(target, Settings()) == str(
        ("night of base, 3, 6, True", [[7, 7, 7]]),
    )


def test_decorated_function_travels_by_name() -> None:
    target = StageTarget.of(triple.target)
    assert (target.name, run_elsewhere(target, 4)) == ("triple", "12")


def test_local_class_travels_by_value() -> None:
    factor = 5

    @stage
    class Local:
        def name(self) -> str:
            return "local"

        def __call__(self, rows: Any) -> Any:
            return [row * factor for row in rows]

    target = StageTarget.of(declared(Local).target)
    assert target.name == ""
    assert run_elsewhere(target) == "('local', [35])"


def test_class_of_a_script_travels_by_value(tmp_path: Path) -> None:
    # Under this name the import system would find it, and find another `__main__` elsewhere.
    script = tmp_path / "__main__.py"
    script.write_text(
        "import sys, cloudpickle\n"
        "from rayorch_prefect.program import program, stage\n"
        "HELP = 2\n"
        "@stage\nclass Mine:\n"
        "    SIZE = 4\n"
        "    def __init__(self): super().__init__()\n"
        "    def name(self): return f'{Mine.SIZE} {HELP} {type(self).__name__}'\n"
        "    def __call__(self, rows): return [row + HELP for row in rows]\n"
        "@program\ndef mine(source): return Mine()(source)\n"
        "sys.stdout.buffer.write(cloudpickle.dumps((mine.plan.pools[0].target, ())))\n"
    )
    env = {"PYTHONPATH": str(ROOT)}
    written = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, timeout=60, check=True
    )
    read = subprocess.run(
        [sys.executable, "-c", RUN],
        input=written.stdout,
        cwd="/",
        env=env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert read.returncode == 0, read.stderr.decode()
    assert read.stdout.decode().strip() == "('4 2 Mine', [9])"


def test_module_loaded_from_a_file_travels_by_value(tmp_path: Path) -> None:
    from importlib.util import module_from_spec, spec_from_file_location

    file = tmp_path / "odd.py"
    file.write_text("class Odd:\n    def __call__(self, rows): return rows\n")
    spec = spec_from_file_location("__prefect_loader_1__", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        assert StageTarget.of(module.Odd).name == ""
    finally:
        del sys.modules[spec.name]


def test_whole_plan_travels() -> None:
    plan = pickle.loads(cloudpickle.dumps(nightly.plan))
    assert plan.fingerprint == nightly.plan.fingerprint
    assert [pool.target.resolve() for pool in plan.pools] == [NIGHT.target, triple.target]


def test_deriving_from_a_decorated_class() -> None:
    assert Shifted(2)([1]) == [21]


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [("no_such_module_here", "Read", "cannot import"), ("json", "Read", "no such class")],
)
def test_what_is_not_there(module: str, name: str, words: str) -> None:
    target = pickle.loads(pickle.dumps(StageTarget(None, module, name)))
    with pytest.raises(StageError, match=rf"stage Read.*{words}"):
        target.resolve()
