"""Nothing is lost, doubled or left behind, and memory stays, however long things go wrong."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import ray
from ray._private import worker

from rayorch_prefect import Engine
from rayorch_prefect.execution import appliers
from tests.soak.cycles import Cycle, store_at
from tests.soak.killing import Killer, alive_actors
from tests.soak.memory import MIB, Memory
from tests.soak.services import running_nodes, running_store, started
from tests.soak.toy import TRIES, Begun, toy

# Seconds that one Engine is used before the next takes its place.
LIFE_S = 300.0
UPLOADERS = 4
# Rounds of Ray alone, and kills of the node after which lost values must have been seen.
BARE_ROUNDS = (8, 24)
LONG_S = 600.0
NODES_FOR_LOSS = 10
END_S = 30.0
# Seconds without a batch after which the soak ends, with what stood still.
STILL_S = 240.0


def soak(seconds: float, seed: int) -> list[str]:
    """Run numbered rows through Engines for so long while workers, uploaders and a node are
    killed and the store goes wrong, all at random; everything that was not as it must be."""
    print(f"soak for {seconds:.0f} s, seed {seed}", flush=True)
    appliers.TRIES = TRIES
    before = our_files()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
        endpoints = stack.enter_context(running_store(seed))
        nodes, address = stack.enter_context(running_nodes(place))
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        stack.callback(ray.shutdown)
        begun = Begun(place / "begun")
        begun.folder.mkdir()
        soaking = Soaking(seed, begun, nodes, store_at(endpoints["store"]))
        faults = soaking.run(seconds)
        soaking.memory.of_lost = of_lost(address, BARE_ROUNDS[seconds >= LONG_S])
        print(soaking.told(), flush=True)
        faults += soaking.verdict()
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
    seen: Counter[str] = field(default_factory=Counter[str])
    killed: Counter[str] = field(default_factory=Counter[str])
    faults: list[str] = field(default_factory=list[str])

    def run(self, seconds: float) -> list[str]:
        """One Engine after another, until a fault is found."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.faults:
            self._life(min(end, time.monotonic() + LIFE_S))
            self.faults += left_in_ray()
        return self.faults

    def _life(self, end: float) -> None:
        options: Any = {"appliers": UPLOADERS, "still_after": STILL_S, "on_still": end_at_once}
        with Engine(toy(self.begun), **options) as engine, ThreadPoolExecutor(8) as pool:
            with Killer(self.seed + self.cycles, self.begun, self.nodes) as killer:
                while time.monotonic() < end and not self.faults:
                    cycle = Cycle(engine, self.cycles, self.store)
                    cycle.run(pool)
                    self.faults += cycle.faults
                    self.cycles += 1
                    lost = self.seen + seen(engine)
                    self.memory.sample(cycle.numbers.stop, lost["workers"] + lost["uploaders"])
            if killer.error:
                raise killer.error
            self.seen += seen(engine)
            self.killed += killer.killed
            print(self.told(), flush=True)

    def told(self) -> str:
        """The state of things in one line."""
        memory, seen = self.memory, self.seen
        latest = memory.samples[-1]
        kills = ", ".join(f"{count} {what}s" for what, count in sorted(self.killed.items()))
        return (
            f"{latest.rows:,} rows; killed: {kills}; seen lost: {seen['workers']} workers, "
            f"{seen['uploaders']} uploaders, {seen['blocks']} blocks; done again: "
            f"{seen['retries']} rows, {seen['remade']} for lost blocks, {seen['applied']} uploads; "
            f"memory {latest.private / MIB:.0f} MiB, {memory.slope():+.2f} MiB per 1,000 rows, "
            f"{memory.own_slope():+.2f} without the {memory.of_lost / 1024:.0f} KiB that Ray keeps "
            f"of a dead actor ({memory.per_lost():.0f} KiB a death in all)"
        )

    def verdict(self) -> list[str]:
        """What the whole of it must show."""
        blind = self.killed["node"] >= NODES_FOR_LOSS and not self.seen["remade"]
        unseen = [f"no value was lost with {self.killed['node']} nodes"] if blind else []
        return [*unseen, *self.memory.faults()]


def seen(engine: Engine) -> Counter[str]:
    """What the Engine counted of losses, and of what it did again for them."""
    counts = engine.metrics
    return Counter(
        workers=counts.workers_lost,
        uploaders=counts.appliers_lost,
        blocks=counts.lost_blocks,
        retries=counts.retries,
        remade=counts.remade_rows,
        applied=counts.applied_again,
    )


def of_lost(address: str, rounds: int) -> float:
    """Bytes that Ray alone keeps of a dead actor, measured now."""
    with started("tests.soak.bare", address, str(rounds)) as process:
        assert process.stdout is not None
        told = [line for line in process.stdout if line.startswith("bytes ")]
    assert told, "Ray alone was not measured"
    return float(told[0].split()[1])


def end_at_once(still: str) -> None:
    """A soak that waits for ever finds nothing more."""
    print(f"fault: {still}", flush=True)
    faulthandler.dump_traceback()
    os._exit(1)


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
