"""The fingerprint is the same in every process, and changes with what it should."""

from __future__ import annotations

import functools
import gc
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.program import F, Port, program, stage
from rayorch_prefect.program.canonical import NoStableForm, canonical
from tests.program.night import nightly
from tests.program.toys import Join, One, Other, Two, assert_declined, double, fetch

ROOT = Path(__file__).parents[2]


def in_process(code: str, seed: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_same_in_processes_with_other_hash_seeds() -> None:
    code = (
        "from tests.program.night import nightly as n; p = n.plan; "
        "print(p.fingerprint, p.source_hash, hash('x'))"
    )
    first, second = (in_process(code, seed).split() for seed in ("1", "2"))
    assert first[2] != second[2]
    assert first[:2] == second[:2] == [nightly.plan.fingerprint, nightly.plan.source_hash]
    assert len(first[0]) == len(first[1]) == 64


def test_same_as_a_script_and_imported(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "from rayorch_prefect.program import program, stage\n"
        "@stage\nclass Mine:\n    def __call__(self, rows): return rows\n"
        "@program\ndef mine(source): return Mine()(source)\n"
        "print(mine.plan.fingerprint, mine.module_path)\n"
    )
    imported = "import sys; sys.path.insert(0, sys.argv[1]); import own"
    direct = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert direct == in_process(imported, "1", str(tmp_path))
    assert direct.endswith(" own:mine")


class Scale:
    def __init__(self, by: object = 1) -> None:
        self.by = by

    def __call__(self, rows: list[Any]) -> list[Any]:
        return rows


def print_of(declare: Callable[[Port], object], version: str = "1", name: str = "same") -> str:
    declare.__name__ = name
    return program(version=version)(declare).plan.fingerprint


def scaled(by: object = 1, **options: Any) -> str:
    return print_of(lambda source: stage(Scale, **options)(by)(source))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 9},
        {"replicas": 4},
        {"num_cpus": 2},
        {"num_gpus": 1},
        {"resources": {"disk": 1}},
        {"runtime_env": {"env_vars": {"A": "1"}}},
        {"label_selector": {"region": "eu"}},
        {"node_setup": gc.collect},
        {"retry_budget": 1},
        {"batch_limit_s": 60},
        {"memory_limit_mb": 512},
        {"recycle_after_batches": 9},
        {"recycle_above_mb": 900},
        {"linger_s": 0.5},
    ],
)
def test_physical_options_do_not_matter(options: dict[str, Any]) -> None:
    assert scaled(**options) == scaled()


def test_a_row_limit_does_not_matter() -> None:
    assert scaled(rowwise=True, row_limit_s=3) == scaled(rowwise=True)


def test_concurrency_does_not_matter() -> None:
    def printed(**options: Any) -> str:
        return print_of(lambda source: fetch.options(**options)(source))

    assert printed(concurrency=8) == printed()


def test_shared_pools_do_not_matter() -> None:
    def shared(source: Port) -> object:
        one = One()
        return one(one(source))

    assert print_of(shared) == print_of(lambda source: One()(One()(source)))


def test_what_matters() -> None:
    def reduced(**options: Any) -> str:
        return print_of(lambda s: F.reduce(F.expand(One()(s), domain="page"), **options))

    prints = [
        scaled(),
        scaled(2),
        scaled(1.0),
        scaled(True),
        scaled("1"),
        scaled(rowwise=True),
        print_of(lambda source: stage(Scale)(by=1)(source)),
        print_of(lambda source: One()(source)),
        print_of(lambda source: One()(source), version="2"),
        print_of(lambda source: One()(source), name="other"),
        print_of(lambda source: Other()(source)),
        print_of(lambda source: One()(One()(source))),
        print_of(lambda source: (One()(source),)),
        print_of(lambda source: double(source)),
        print_of(lambda source: Two()(source)),
        print_of(lambda source: Two()(source)[0]),
        print_of(lambda source: Two()(source)[1]),
        print_of(lambda source: Join()(*Two()(source))),
        print_of(lambda source: Join()(*reversed(Two()(source)))),
        print_of(lambda source: stage(functools.partial(max, 1))(source)),
        print_of(lambda source: stage(functools.partial(max, 2))(source)),
        reduced(),
        reduced(on_failure="skip"),
        reduced(on_failure="skip", max_missing=1),
        reduced(on_failure="skip", max_missing=1.0),
        reduced(on_failure="keep"),
    ]
    assert len(set(prints)) == len(prints)


def test_source_hash_follows_the_source() -> None:
    first: Any = type("Made", (Scale,), {})
    second: Any = type("Made", (Scale,), {})
    first.__call__ = lambda self, rows: rows
    second.__call__ = lambda self, rows: rows[:]

    def hash_of(made: type) -> str:
        return program(lambda source: stage(made)()(source)).plan.source_hash

    assert hash_of(first) != hash_of(second)
    assert hash_of(first) == hash_of(first)
    assert program(lambda source: stage(len)(source)).plan.source_hash == ""


class Colour(Enum):
    RED = 1


class TestCanonical:
    def test_orders_do_not_matter(self) -> None:
        assert canonical({"a": 1, "b": {2, 3}}) == canonical({"b": {3, 2}, "a": 1})

    def test_values_of_other_types_differ(self) -> None:
        values: list[object] = [1, 1.0, True, "1", b"1", None, [1], (1,), {1}, {1: 1}, Colour.RED]
        values += [frozenset({1}), 1j, Path("1"), int, len, Colour, Scale(1), Scale(2), ..., "é"]
        assert len({canonical(value) for value in values}) == len(values)

    def test_functions_by_their_code_and_captured_values(self) -> None:
        def adder(by: int) -> Callable[[int], int]:
            return lambda value: value + by

        assert canonical(adder(1)) == canonical(adder(1))
        assert canonical(adder(1)) != canonical(adder(2))

    def test_what_contains_itself(self) -> None:
        loop: list[object] = []
        loop.append(loop)
        with pytest.raises(NoStableForm, match="contains itself"):
            canonical(loop)

    def test_the_same_value_twice_is_no_loop(self) -> None:
        part = [1]
        assert canonical([part, part]) == canonical([[1], [1]])

    def test_no_stable_form(self) -> None:
        lock = threading.Lock()

        def declare(source: Port) -> object:
            return stage(Scale)(by=lock)(source)  # <-

        message = assert_declined(declare, "stage Scale", "'by'", "plain data")
        assert "lock" in message
        with pytest.raises(ProgramError):
            scaled({"deep": [lock]})


def test_source_is_read_again_when_another_thread_parsed_at_the_same_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = inspect.getsource
    mishaps = [SystemError("AST constructor recursion depth mismatch")] * 2

    def unlucky(target: object) -> str:
        if mishaps:
            raise mishaps.pop()
        return read(target)  # type: ignore[arg-type]

    monkeypatch.setattr(inspect, "getsource", unlucky)

    class Fresh:
        def __call__(self, rows: list[int]) -> list[int]:
            return rows

    made = program(version="1")(lambda source: stage(Fresh)()(source))
    assert made.plan.source_hash
    assert not mishaps
