"""Connecting to Ray, and whether a Program fits it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import ray

from rayorch_prefect import Engine, Program, program, stage
from rayorch_prefect.errors import ClusterError, DoesNotFit, UsageError
from rayorch_prefect.execution.cluster import connect
from rayorch_prefect.program import StageOptions

ROOT = Path(__file__).parents[2]


class Slow:
    def __call__(self, rows: list[int]) -> list[int]:
        return rows


class Fast(Slow):
    pass


def asking(first: StageOptions, second: StageOptions | None = None) -> Program:
    @program
    def asked(row: Any) -> Any:
        return stage(Fast, **(second or {}))()(stage(Slow, **first)()(row))

    return asked


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"num_cpus": 64}, None, r"stage Slow: a worker needs CPU 64.*nodes: CPU 4"),
        ({"num_gpus": 0.5}, None, r"stage Slow: a worker needs CPU 0.1, GPU 0.5.*GPU 0"),
        ({"resources": {"tape": 1}}, None, r"stage Slow: .*tape 1.*tape 0"),
        (
            {"num_cpus": 1, "replicas": 3},
            {"num_cpus": 2},
            r"need 5 CPU together and the cluster has 4: Slow 3 \(3 workers\), Fast 2",
        ),
    ],
)
def test_what_does_not_fit_is_said_before_the_start(
    cluster: str, first: StageOptions, second: StageOptions | None, said: str
) -> None:
    with pytest.raises(DoesNotFit, match=said):
        Engine(asking(first, second)).__enter__()


def test_what_just_fits_starts(cluster: str) -> None:
    with Engine(asking({"num_cpus": 2}, {"num_cpus": 1, "replicas": 2})) as engine:
        assert [parent.value() for parent in engine.run([1])] == [1]


def test_workers_that_are_not_ready_in_time_are_named(cluster: str) -> None:
    blocker: Any = ray.remote(num_cpus=3)(_Blocker)
    blocker = blocker.remote()
    try:
        ray.get(blocker.ready.remote())
        with pytest.raises(ClusterError, match=r"not ready within 1 s: stage Slow 1 of 1"):
            Engine(asking({"num_cpus": 3}), start_timeout=1.0).__enter__()
    finally:
        ray.kill(blocker)


class _Blocker:
    def ready(self) -> bool:
        return True


def test_a_client_address_is_refused(cluster: str) -> None:
    with pytest.raises(UsageError, match=r"ray://host:10001 is a Ray client address.*host:6379"):
        Engine(asking({}), address="ray://host:10001").__enter__()
    with pytest.raises(UsageError, match=r"ray://\*\*\*@host:10001 is"):
        Engine(asking({}), address="ray://user:secret@host:10001").__enter__()


def test_an_initialised_ray_beats_the_environment(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://elsewhere:10001")
    assert connect(None) is False


def test_an_initialised_ray_is_left_running(cluster: str) -> None:
    with Engine(asking({})) as engine:
        assert len(list(engine.run([1]))) == 1
    assert ray.is_initialized()
    assert str(ray.get_runtime_context().gcs_address) == cluster


ALONE = """
    import os, signal, time
    import ray
    from rayorch_prefect import Engine, program, stage
    from rayorch_prefect.errors import ClusterError

    def mine(number, frame): print("mine", flush=True)

    before = signal.signal(signal.SIGTERM, mine)

    class Pid:
        def __call__(self, rows):
            import os
            return [os.getpid() for _ in rows]

    @program
    def pids(row):
        return stage(Pid)()(row)

    def alone():
        with Engine(pids) as engine:
            assert ray.is_initialized()
            (parent,) = engine.run([1])
            assert parent.value() != os.getpid()
            os.kill(os.getpid(), signal.SIGTERM)
            return parent.value()

    pid = alone()
    assert not ray.is_initialized(), "its own Ray is ended"
    assert signal.getsignal(signal.SIGTERM) is mine

    try:
        Engine(pids, address="127.0.0.1:1").__enter__()
    except ClusterError as error:
        print("refused:", "no Ray cluster answers at 127.0.0.1:1" in str(error), flush=True)
    def gone():
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    end = time.monotonic() + 30
    while not gone() and time.monotonic() < end:
        time.sleep(0.1)
    print("gone:", gone(), flush=True)
"""


@pytest.mark.timeout(150)
def test_an_engine_of_its_own_ray_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(textwrap.dedent(ALONE))
    kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["mine", "refused: True", "gone: True"]
