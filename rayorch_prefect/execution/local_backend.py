"""Workers inside this process, one batch after another: for `run_local` and for tests."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

from rayorch_prefect.execution.batch import Fetch, LargeReturns, run_batch
from rayorch_prefect.execution.driver import (
    BackendMessage,
    BatchReply,
    WorkerIsLost,
    WorkerIsReady,
)
from rayorch_prefect.execution.messages import BatchMessage
from rayorch_prefect.execution.specs import contracts, stage_spec
from rayorch_prefect.execution.stage_runner import FAULTS, StageRunner, short
from rayorch_prefect.program.plan import Plan

logger = logging.getLogger(__name__)


class _Held:
    """A stored object; hashable by identity, as a reference is."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self.chunks = chunks


def _fetch(refs: Sequence[Any]) -> Sequence[Any]:
    return [ref.chunks for ref in refs]


class LocalBackend:
    """With a seed, batches end in a random order that the seed fixes, and a share of
    `losses` of them is lost with its worker; without, in the order they were sent."""

    def __init__(self, plan: Plan, seed: int | None = None, losses: float = 0.0) -> None:
        self._plan = plan
        self._random = None if seed is None else random.Random(seed)
        self._losses = losses
        self._workers: dict[int, tuple[int, StageRunner]] = {}
        self._next_worker = 0
        self._contracts = [contracts(plan, pool.id) for pool in plan.pools]
        self._started: list[BackendMessage] = []
        self._sent: list[tuple[int, int, BatchMessage]] = []

    @property
    def fetch(self) -> Fetch:
        """Reads stored objects."""
        return _fetch

    def start_worker(self, pool: int) -> int:
        """Build a stage's worker at once; whether it worked is said by `step`."""
        worker = self._next_worker
        self._next_worker += 1
        try:
            runner = StageRunner(stage_spec(self._plan.pools[pool]))
        except FAULTS as error:
            message = f"{type(error).__name__}: {short(error)}"
            self._started.append(WorkerIsLost(worker, pool, type(error).__name__, message))
        else:
            self._workers[worker] = (pool, runner)
            self._started.append(WorkerIsReady(worker, pool))
        return worker

    def send(self, worker: int, batch: int, message: BatchMessage) -> None:
        """Note a batch; it runs in a later `step`."""
        self._sent.append((worker, batch, message))

    def discard(self, worker: int) -> None:
        """A lost worker is gone at once here."""

    def keep(self, data: Any) -> Any:
        """Store a large chunk."""
        return _Held([data])

    def step(self) -> BackendMessage | None:
        """Run one batch, or say what has become of a start; None when there is nothing."""
        if self._started:
            return self._started.pop(0)
        if not self._sent:
            return None
        chosen = 0 if self._random is None else self._random.randrange(len(self._sent))
        worker, batch, message = self._sent.pop(chosen)
        if self._random is not None and self._random.random() < self._losses:
            return self._lose(worker)
        pool, runner = self._workers[worker]
        contract = self._contracts[pool][message.call]
        reply, returns = run_batch(runner, contract, message, _fetch)
        return BatchReply(worker, batch, reply, _held(returns))

    def _lose(self, worker: int) -> BackendMessage:
        pool, _ = self._workers[worker]
        self._end(worker)
        return WorkerIsLost(worker, pool, "WorkerDied", "lost by the schedule")

    def close(self) -> None:
        """Let every stage put away what it holds."""
        for worker in list(self._workers):
            self._end(worker)

    def _end(self, worker: int) -> None:
        pool, runner = self._workers.pop(worker)
        try:
            runner.close()
        except Exception as error:
            stage = self._plan.pools[pool].stage
            logger.warning("stage %s: close() of a worker raised: %s", stage, error)


def _held(returns: LargeReturns) -> list[_Held]:
    return [_Held(chunks) for chunks in returns]
