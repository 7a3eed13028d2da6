"""Workers inside this process, one batch after another: for `run_local` and for tests."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

from rayorch_prefect.execution.backend import (
    BackendMessage,
    BatchReply,
    ChunksCame,
    TakeBackAnswer,
    WorkerIsLost,
    WorkerIsReady,
)
from rayorch_prefect.execution.bars import Bars
from rayorch_prefect.execution.batch import Fetch, LargeReturns, references, run_batch
from rayorch_prefect.execution.chunk_batch import Handed, run_in_chunks
from rayorch_prefect.execution.losses import LostValues
from rayorch_prefect.execution.messages import BatchMessage
from rayorch_prefect.execution.specs import contracts, stage_spec
from rayorch_prefect.execution.stage_runner import FAULTS, StageRunner, short
from rayorch_prefect.model.events import Bar
from rayorch_prefect.program.plan import Plan

logger = logging.getLogger(__name__)


class _Held:
    """A stored object; hashable by identity, as a reference is."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self.chunks: Sequence[Any] | None = chunks


class _Kept(_Held):
    """One that the driver put there."""


def _fetch(refs: Sequence[Any]) -> Sequence[Any]:
    lost = [position for position, ref in enumerate(refs) if ref.chunks is None]
    if lost:
        raise LostValues(lost)
    return [ref.chunks for ref in refs]


class LocalBackend:
    """With a seed, batches end in a random order that the seed fixes, a share of `losses` of
    them is lost with its worker, and as `lost_values` says stored objects that they are to
    read; without, batches end in the order they were sent."""

    def __init__(
        self,
        plan: Plan,
        seed: int | None = None,
        losses: float = 0.0,
        lost_values: float = 0.0,
    ) -> None:
        self._plan = plan
        self._random = None if seed is None else random.Random(seed)
        self._losses = losses
        self._lost_values = lost_values
        self._workers: dict[int, tuple[int, StageRunner]] = {}
        self._bars: dict[int, Bars] = {}
        self._next_worker = 0
        self._set_up_pools: set[int] = set()
        self._contracts = [contracts(plan, pool.id) for pool in plan.pools]
        self._started: list[BackendMessage] = []
        self._running: dict[int, Iterator[Handed]] = {}
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
            self._set_up(pool)
            runner = StageRunner(stage_spec(self._plan.pools[pool]))
        except FAULTS as error:
            message = f"{type(error).__name__}: {short(error)}"
            self._started.append(WorkerIsLost(worker, pool, type(error).__name__, message))
        else:
            self._workers[worker] = (pool, runner)
            self._bars[worker] = Bars()
            self._started.append(WorkerIsReady(worker, pool))
        return worker

    def _set_up(self, pool: int) -> None:
        """This process is the one node."""
        setup = self._plan.pools[pool].node_setup
        if setup is not None and pool not in self._set_up_pools:
            setup.resolve()()
            self._set_up_pools.add(pool)

    def send(self, worker: int, batch: int, message: BatchMessage, together: int = 1) -> None:
        """Note a batch; it runs in a later `step`."""
        self._sent.append((worker, batch, message))

    def hand_over(self, worker: int) -> None:
        """There are no calls that batches could share."""

    def take_back(self, worker: int, batch: int) -> None:
        """A batch that waits behind another one has not started."""
        waiting = [sent for sent in self._sent if sent[1] == batch and batch not in self._running]
        self._sent = [sent for sent in self._sent if sent not in waiting]
        self._started.append(TakeBackAnswer(worker, batch, taken=bool(waiting)))

    def tell_bars(self, worker: int, bars: Sequence[Bar]) -> None:
        """Tell a worker of groups that were barred since it got its rows."""
        self._bars[worker].tell(bars)

    def forget_bar(self, worker: int, bar: Bar) -> None:
        """Tell a worker that a bar does not hold."""
        self._bars[worker].forget(bar)

    def look(self, worker: int, batch: int) -> None:
        """Nothing runs here while the driver looks: limits are not kept."""

    def retire(self, worker: int) -> None:
        """Let an idle worker close."""
        self._end(worker)

    def discard(self, worker: int) -> None:
        """A lost worker is gone at once here."""

    def keep(self, data: Any) -> Any:
        """Store a large chunk; what the driver itself keeps is never lost."""
        return _Kept([data])

    def _lose_values(self, message: BatchMessage) -> None:
        """Some of what the batch reads may be gone."""
        for ref in references(message.chunks):
            if not isinstance(ref, _Kept) and self._chance(self._lost_values):
                ref.chunks = None

    def _chance(self, share: float) -> bool:
        return self._random is not None and share > 0 and self._random.random() < share

    def unstored(self, returned: Sequence[Any]) -> str | None:
        """Memory takes all, or ends this process."""
        return None

    def step(self) -> BackendMessage | None:
        """Run one batch, or say what has become of a start; None when there is nothing."""
        if self._started:
            return self._started.pop(0)
        if not self._sent:
            return None
        worker, batch, message = self._next()
        if self._chance(self._losses):
            return self._lose(worker)
        if batch not in self._running:
            self._lose_values(message)
        if message.in_chunks:
            return self._next_portion(worker, batch, message)
        pool, runner = self._workers[worker]
        contract = self._contracts[pool][message.call]
        reply, returns = run_batch(runner, contract, message, _fetch, self._bars[worker])
        return BatchReply(worker, batch, reply, _held(returns))

    def _next_portion(self, worker: int, batch: int, message: BatchMessage) -> BackendMessage:
        """Go on with a batch that hands over children; then others have their turn."""
        handed = self._running.pop(batch, None) or self._begun(worker, message)
        portion, large = next(handed)
        if portion.end is None:
            self._running[batch] = handed
            places = [place for place, sent in enumerate(self._sent) if sent[0] == worker]
            self._sent.insert(min(places, default=len(self._sent)), (worker, batch, message))
        else:
            end = BatchReply(worker, batch, portion.end)
            if not portion.chunks:
                return end
            self._started.append(end)
        return ChunksCame(worker, batch, portion.chunks, _Held(large))

    def _begun(self, worker: int, message: BatchMessage) -> Iterator[Handed]:
        pool, runner = self._workers[worker]
        contract = self._contracts[pool][message.call]
        due = None if self._random is None else lambda size: self._chance(0.5)
        return run_in_chunks(runner, contract, message, _fetch, self._bars[worker], due=due)

    def _next(self) -> tuple[int, int, BatchMessage]:
        """The oldest batch of some worker."""
        if self._random is None:
            return self._sent.pop(0)
        oldest = {worker: place for place, (worker, _, _) in reversed(list(enumerate(self._sent)))}
        return self._sent.pop(self._random.choice(sorted(oldest.values())))

    def _lose(self, worker: int) -> BackendMessage:
        for _, batch, _ in [sent for sent in self._sent if sent[0] == worker]:
            self._running.pop(batch, None)
        self._sent = [sent for sent in self._sent if sent[0] != worker]
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
