"""Nothing is lost, doubled or left behind, and memory stays, however long things go wrong."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
from ray._private import worker

from rayorch_prefect import Engine
from tests.soak.cycles import Cycle, store_at
from tests.soak.killing import Killer, alive_actors
from tests.soak.toy import Begun, toy
from tests.stores import ACCESS_KEY, SECRET_KEY

ROOT = Path(__file__).parents[2]
# Seconds that one Engine is used before the next takes its place.
LIFE_S = 300.0
UPLOADERS = 4
MIB = 1024**2
MOST_PER_THOUSAND = MIB
WARM_UP = 0.3
# Seen with Ray alone: so much stays in the driver of each actor that died.
PER_LOST = 32 * 1024
# Pages of the allocator come and go, which shows where few rows were run.
NOISE = 3 * MIB
END_S = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Private bytes of this process after so many rows and so many lost actors."""

    rows: int
    lost: int
    private: int


@dataclass
class Memory:
    """What the driver's process grows by; Ray's shared memory is left out."""

    samples: list[Sample] = field(default_factory=list[Sample])

    def sample(self, rows: int, lost: int) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        kib = int(status.partition("RssAnon:")[2].split()[0])
        self.samples.append(Sample(rows, lost, kib * 1024))

    def slope(self) -> float:
        """MiB per 1,000 rows after the warm-up, without what Ray keeps of dead actors."""
        first, last = self._ends()
        rows = max(1, last.rows - first.rows)
        return self._growth(first, last) / MIB / rows * 1000

    def faults(self) -> list[str]:
        first, last = self._ends()
        allowed = MOST_PER_THOUSAND * (last.rows - first.rows) / 1000 + NOISE
        if self._growth(first, last) <= allowed:
            return []
        return [f"memory grew by {self.slope():.2f} MiB per 1,000 rows: {first} to {last}"]

    def _ends(self) -> tuple[Sample, Sample]:
        return self.samples[int(len(self.samples) * WARM_UP)], self.samples[-1]

    def _growth(self, first: Sample, last: Sample) -> float:
        return last.private - first.private - PER_LOST * (last.lost - first.lost)


def soak(seconds: float, seed: int) -> list[str]:
    """Run numbered rows through Engines for so long while workers, uploaders and a node are
    killed and the store goes wrong, all at random; everything that was not as it must be."""
    print(f"soak for {seconds:.0f} s, seed {seed}", flush=True)
    before = our_files()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
        endpoints = stack.enter_context(running_store(seed))
        nodes, address = stack.enter_context(running_nodes(place))
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        stack.callback(ray.shutdown)
        begun = Begun(place / "begun")
        begun.folder.mkdir()
        faults = Soaking(seed, begun, nodes, store_at(endpoints["store"])).run(seconds)
    return [*faults, *(f"left behind: {name}" for name in sorted(our_files() - before))]


@dataclass
class Soaking:
    """What lasts longer than an Engine."""

    seed: int
    begun: Begun
    nodes: subprocess.Popen[str]
    store: Any
    memory: Memory = field(default_factory=Memory)
    cycles: int = 0
    _lost_before: int = 0
    faults: list[str] = field(default_factory=list[str])

    def run(self, seconds: float) -> list[str]:
        """One Engine after another, until a fault is found."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.faults:
            self._life(min(end, time.monotonic() + LIFE_S))
            self.faults += left_in_ray()
        return self.faults + self.memory.faults()

    def _life(self, end: float) -> None:
        with Engine(toy(self.begun), appliers=UPLOADERS) as engine, ThreadPoolExecutor(8) as pool:
            with Killer(self.seed + self.cycles, self.begun, self.nodes) as killer:
                while time.monotonic() < end and not self.faults:
                    cycle = Cycle(engine, self.cycles, self.store)
                    cycle.run(pool)
                    self.faults += cycle.faults
                    self.cycles += 1
                    self.memory.sample(cycle.numbers.stop, self._lost_before + lost(engine))
            if killer.error:
                raise killer.error
            self._lost_before += lost(engine)
            print(told(engine, killer, self.memory), flush=True)


def lost(engine: Engine) -> int:
    """Actors of the Engine that have died."""
    return engine.metrics.workers_lost + engine.metrics.appliers_lost


def told(engine: Engine, killer: Killer, memory: Memory) -> str:
    """The state of things in one line."""
    latest = memory.samples[-1]
    kills = ", ".join(f"{count} {what}s" for what, count in sorted(killer.killed.items()))
    counts = engine.metrics
    return (
        f"{latest.rows:,} rows; killed: {kills}; seen lost: {counts.workers_lost} workers, "
        f"{counts.appliers_lost} uploaders, {counts.lost_blocks} blocks; done again: "
        f"{counts.retries} rows, {counts.remade_rows} for lost blocks, {counts.applied_again} "
        f"uploads; memory {latest.private / MIB:.0f} MiB, "
        f"{memory.slope():+.2f} MiB per 1,000 rows"
    )


def left_in_ray() -> list[str]:
    """Actors and references that are there although no Engine is."""
    eventually(lambda: not alive_actors() and not references())
    actors = [f"actor {each['ActorClassName']}" for each in alive_actors().values()]
    return [f"left behind: {each}" for each in [*actors, *references()]]


def references() -> list[str]:
    """The object references that this process holds."""
    gc.collect()
    # Known only once connected.
    held = cast(Any, worker.global_worker).core_worker.get_all_reference_counts()
    return [f"reference {each.hex()}: {counts}" for each, counts in held.items()]


def our_files() -> set[str]:
    """Of the folder for temporary files."""
    return {str(each) for each in Path(tempfile.gettempdir()).glob("rayorch*")}


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds, but not for ever."""
    end = time.monotonic() + END_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)


@contextmanager
def running_store(seed: int) -> Iterator[dict[str, str]]:
    """The endpoints of a store and of its faulty proxy, which AWS_* of this process names."""
    with started("tests.soak.store", str(seed)) as process:
        assert process.stdout is not None
        endpoints: dict[str, str] = json.loads(process.stdout.readline())
        os.environ |= {
            "AWS_ENDPOINT_URL": endpoints["proxy"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        yield endpoints


@contextmanager
def running_nodes(place: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process of a Ray of two nodes, and its address."""
    with started("tests.cluster.nodes", RAY_TMPDIR=str(place)) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "no cluster came up"
        yield process, address


@contextmanager
def started(module: str, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A module as a process that ends when its standard input does."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
