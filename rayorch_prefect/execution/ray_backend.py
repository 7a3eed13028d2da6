"""Actor pools on Ray.

Values that an actor *returns* belong to the driver, so a dead actor loses nothing that it has
computed. Ray restarts and retries nothing: all replacement and repetition is the scheduler's.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import cloudpickle
import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayorch_prefect.errors import ObjectStoreFull, StageStartError
from rayorch_prefect.execution import object_store
from rayorch_prefect.execution.backend import (
    BackendMessage,
    BatchReply,
    LinesCame,
    TakeBackAnswer,
    WorkerHasRetired,
    WorkerIsAt,
    WorkerIsLost,
    WorkerIsReady,
)
from rayorch_prefect.execution.batch import Fetch
from rayorch_prefect.execution.calls import Calls
from rayorch_prefect.execution.environments import merged
from rayorch_prefect.execution.log_lines import OFF
from rayorch_prefect.execution.marker import Place, read
from rayorch_prefect.execution.messages import (
    BatchMessage,
    Built,
    LinesTaken,
    RowsReply,
    TakenBack,
)
from rayorch_prefect.execution.portions import MOST_UNTAKEN, Portions
from rayorch_prefect.execution.shared_calls import SharedCalls
from rayorch_prefect.execution.specs import build_order
from rayorch_prefect.execution.stage_runner import short
from rayorch_prefect.execution.versions import own_versions
from rayorch_prefect.execution.wire import Packed, pack_batch, unpack_reply
from rayorch_prefect.execution.worker_actor import fetch, search_path, worker_class
from rayorch_prefect.model.events import Bar
from rayorch_prefect.model.reports import AttemptFailed
from rayorch_prefect.program.plan import Plan, Pool

logger = logging.getLogger(__name__)

WORKER_DIED = "WorkerDied"
RETIRING_S = 30.0
# Ray tells the death of a node in words only.
NODE_OF_DEATH = re.compile(r"its node has died\. Node Id: ([0-9a-f]+)")
LAST_PORTION_S = 2.0
LAST_LINES_S = 1.0
# Where an actor was, which says nothing about the row.
_NOT_TOLD = ("class_name", "actor_id", "pid", "namespace", "ip")


class RayBackend:
    """Workers as Ray actors. For the thread that sees to `calls`; there `tell` gets their answers,
    and all else that is told on threads of Ray's.

    `runtime_env` lies under the stages' own; what stages log from `log_level` on is told.
    """

    def __init__(
        self,
        plan: Plan,
        calls: Calls,
        answer: Callable[[BackendMessage], None],
        tell: Callable[[BackendMessage], None],
        runtime_env: Mapping[str, Any] | None = None,
        log_level: str = OFF,
    ) -> None:
        self._calls = calls
        self._shared = SharedCalls(self._send_together)
        self._answer = answer
        self._tell = tell
        self._log_level = log_level
        self._actors: dict[int, Any] = {}
        self._pool_of: dict[int, int] = {}
        self._built_as: dict[int, Built] = {}
        self._watches: dict[int, Any] = {}
        self._node = ray.get_runtime_context().get_node_id()
        self._next_worker = 0
        self._takers: list[threading.Thread] = []
        self._stages = [pool.stage for pool in plan.pools]
        self._hints = [_hint(pool) for pool in plan.pools]
        self._specs = [ray.put(_pickled(plan, pool)) for pool in plan.pools]
        self._path = search_path()
        self._classes = [_optioned(pool, runtime_env or {}) for pool in plan.pools]

    @property
    def fetch(self) -> Fetch:
        """Reads stored objects."""
        return fetch

    @property
    def takes_portions(self) -> bool:
        """Whether a batch is under way that hands its children over in portions."""
        return any(taker.is_alive() for taker in self._takers)

    def start_worker(self, pool: int) -> int:
        """Ask Ray for an actor; its readiness or failure is told."""
        worker = self._next_worker
        self._next_worker += 1
        actor = self._classes[pool].remote()
        self._actors[worker] = actor
        self._pool_of[worker] = pool
        built = actor.build.remote(own_versions(), self._specs[pool], self._path, self._log_level)
        self._calls.expect(built, partial(self._built, worker))
        return worker

    def _built(self, worker: int, built: Any, error: BaseException | None) -> None:
        pool = self._pool_of[worker]
        if error is not None:
            self._answer(_lost(worker, pool, error))
        elif not isinstance(built, Built):
            kind, message, *logged = built
            for taken in logged:
                self._logged(pool, taken)
            self._answer(WorkerIsLost(worker, pool, kind, f"{kind}: {message}"))
        else:
            self._built_as[worker] = built
            self._watch(worker)  # first: what its first batch logs is to be heard
            self._answer(WorkerIsReady(worker, pool))

    def _watch(self, worker: int) -> None:
        """Notice a worker that dies while it has nothing to do, and what its stage logs."""
        actor = self._actors.get(worker)
        if actor is not None:
            watch = self._watches[worker] = actor.watch.remote()
            watch.future().add_done_callback(lambda future: self._watched(worker, future))

    def _watched(self, worker: int, future: Future[Any]) -> None:
        pool = self._pool_of[worker]
        if (error := future.exception()) is not None:
            self._tell(_lost(worker, pool, error, self._built_as.get(worker), idle=True))
            del self._watches[worker]
            return
        taken: LinesTaken = future.result()
        self._logged(pool, taken)
        del self._watches[worker]
        if not taken.last:
            self._watch(worker)

    def _logged(self, pool: int, taken: LinesTaken) -> None:
        if taken.lines or taken.left_out:
            self._tell(LinesCame(pool, taken.lines, taken.left_out))

    def send(self, worker: int, batch: int, message: BatchMessage, together: int = 1) -> None:
        """Send a batch; its reply or the worker's death is told. `together` batches may share a
        call, which leaves by `flush` at the latest."""
        if message.in_chunks:
            self._shared.leave(worker)
            self._send_in_chunks(worker, batch, message)
            return
        data, stored = pack_batch(message)
        if together > 1 and not stored and not message.large_returns:
            self._shared.add(worker, batch, data, together)
            return
        self._shared.leave(worker)
        method = self._actors[worker].run
        packed = _arguments(data, stored)
        large: Sequence[Any] = ()
        if message.large_returns:
            returns = 1 + message.large_returns
            header, *large = method.options(num_returns=returns).remote(*packed)
        else:
            header = method.remote(*packed)
        self._shared.sent(worker, 1)
        self._calls.expect(header, partial(self._replied, worker, batch, large))

    def flush(self) -> None:
        """Send what has waited to share a call, unless its worker has enough to do."""
        self._shared.flush()

    def _send_together(self, worker: int, batches: Sequence[int], packed: Sequence[Packed]) -> None:
        replies = self._actors[worker].run_together.remote(pickle.dumps(packed, 5))
        self._shared.sent(worker, len(batches))
        self._calls.expect(replies, partial(self._replied_together, worker, batches))

    def _replied_together(
        self, worker: int, batches: Sequence[int], packed: Any, error: BaseException | None
    ) -> None:
        if error is None:
            self._shared.over(worker)
            self._handed_over(worker, packed, None)
            return
        if not self._replaced_if_broken(worker, error):
            for batch in batches:
                self._answer(self._failed(worker, batch, error))
        self._shared.over(worker)

    def _handed_over(self, worker: int, packed: Any, error: BaseException | None) -> None:
        """Replies of batches that shared a call; not all of them if it goes on."""
        if error is not None:
            self._replaced_if_broken(worker, error)  # a death is told by the call
            return
        for batch, reply in pickle.loads(packed):
            self._came(worker, batch, (), reply)

    def _replaced_if_broken(self, worker: int, error: BaseException) -> bool:
        """Whether a living worker could not say what came of batches that shared a call: which of
        them it is due to is not known, so another worker gets each alone."""
        full = object_store.full(error)
        if full is None and not isinstance(error, RayTaskError):
            return False
        said = f"what came of batches that shared a call is not known: {full or short(error)}"
        told = WorkerIsLost(worker, self._pool_of[worker], type(error).__name__, said, charge=False)
        self._answer(told)
        return True

    def hand_over(self, worker: int) -> None:
        """Have a worker say at once what came of the first batches of a call that lasts."""
        if self._shared.shares(worker):
            asked = self._actors[worker].hand_over.remote()
            self._calls.expect(asked, partial(self._handed_over, worker))

    def _replied(
        self,
        worker: int,
        batch: int,
        large: Sequence[Any],
        packed: Any,
        error: BaseException | None,
    ) -> None:
        if error is None:
            self._shared.over(worker)
            self._came(worker, batch, large, packed)
        else:
            self._answer(self._failed(worker, batch, error))
            self._shared.over(worker)

    def _came(self, worker: int, batch: int, large: Sequence[Any], packed: Any) -> None:
        reply = unpack_reply(packed)
        if isinstance(reply, RowsReply) and reply.left_behind:
            self._collect(worker, batch, reply)
        elif not isinstance(reply, TakenBack):
            self._answer(BatchReply(worker, batch, reply, large))

    def _collect(self, worker: int, batch: int, reply: RowsReply) -> None:
        """Have a worker return what is large of a batch: its objects are then the driver's, as
        all others, and do not pass through it."""
        actor = self._actors.get(worker)
        if actor is None:
            return  # ended meanwhile, which was told
        word, *large = actor.collect.options(num_returns=1 + reply.left_behind).remote(batch)

        def collected(_: Any, error: BaseException | None) -> None:
            if error is None:
                self._answer(BatchReply(worker, batch, reply, large))
            else:
                self._answer(self._failed(worker, batch, error))

        self._calls.expect(word, collected)

    def _send_in_chunks(self, worker: int, batch: int, message: BatchMessage) -> None:
        """A thread a batch takes what it hands over: Ray offers no other way to wait for it."""
        method = self._actors[worker].run_in_chunks.options(
            num_returns="streaming", _generator_backpressure_num_objects=MOST_UNTAKEN
        )
        portions = Portions(worker, batch, method.remote(*_arguments(*pack_batch(message))))

        def take() -> None:
            try:
                for told in portions:
                    self._tell(told)
            except RayError as error:
                self._tell(self._failed(worker, batch, error))

        taker = threading.Thread(target=take, name=f"rayorch-batch-{batch}", daemon=True)
        self._takers = [known for known in self._takers if known.is_alive()] + [taker]
        taker.start()

    def _failed(self, worker: int, batch: int, error: BaseException) -> BackendMessage:
        if (problem := object_store.full(error)) is not None:
            said = f"what it returned could not be stored: {problem}"
            return BatchReply(worker, batch, AttemptFailed(ObjectStoreFull.__name__, said))
        if isinstance(error, RayTaskError):
            failed = AttemptFailed(type(error).__name__, short(error))
            return BatchReply(worker, batch, failed)
        pool = self._pool_of[worker]
        built = self._built_as.get(worker)
        lost = _lost(worker, pool, error, built, hint=self._hints[pool])
        # Which of several batches it was at is not known: nobody is charged.
        return replace(lost, charge=False) if self._shared.shares(worker) else lost

    def take_back(self, worker: int, batch: int) -> None:
        """Ask a worker not to start a batch; its answer is told."""
        asked = self._actors[worker].take_back.remote(batch)
        self._calls.expect(asked, partial(self._answered_back, worker, batch))

    def _answered_back(
        self, worker: int, batch: int, taken: bool, error: BaseException | None
    ) -> None:
        if error is None:
            self._answer(TakeBackAnswer(worker, batch, taken))

    def tell_bars(self, worker: int, bars: Sequence[Bar]) -> None:
        """Tell a worker of groups that were barred since it got its rows."""
        self._actors[worker].tell_bars.remote(bars)

    def forget_bar(self, worker: int, bar: Bar) -> None:
        """Tell a worker that a bar does not hold."""
        self._actors[worker].forget_bar.remote(bar)

    def look(self, worker: int, batch: int) -> None:
        """Read on the worker's node which row it is at; the worker itself may not answer."""
        built = self._built_as.get(worker)
        if built is None or built.marker is None:
            return
        if built.node == self._node:
            self._tell(WorkerIsAt(worker, batch, read(built.marker)))
            return
        there = NodeAffinitySchedulingStrategy(built.node, soft=False)
        seen = _read_there.options(scheduling_strategy=there).remote(built.marker)
        self._calls.expect(seen, partial(self._looked, worker, batch))

    def _looked(
        self, worker: int, batch: int, place: Place | None, error: BaseException | None
    ) -> None:
        self._answer(WorkerIsAt(worker, batch, None if error is not None else place))

    def keep(self, data: Any) -> Any:
        """Put a large chunk into Ray's object store. Raises ObjectStoreFull."""
        return object_store.put([data])

    def unstored(self, returned: Sequence[Any]) -> str | None:
        """Why one of these large returns is not in the object store; None if all are."""
        return object_store.unstored(returned)

    def retire(self, worker: int) -> None:
        """Let a worker close; one that takes longer than `RETIRING_S` is not waited for."""
        ended = WorkerHasRetired(worker)
        late = threading.Timer(RETIRING_S, self._tell, [ended])
        late.daemon = True
        late.start()
        end = self._actors[worker].close.remote()

        def closed(future: Future[Any]) -> None:
            late.cancel()
            self._log_end(worker, future.exception())
            self._tell(ended)

        end.future().add_done_callback(closed)

    def discard(self, worker: int) -> None:
        """End a worker at once, even in a call that holds the interpreter's lock."""
        actor = self._actors.pop(worker, None)
        self._built_as.pop(worker, None)
        self._shared.forget(worker)
        if actor is not None:
            ray.kill(actor)

    def close(self, patience_s: float) -> None:
        """End all workers: first by `close()`, then for good."""
        for actor in self._actors.values():
            actor.start_no_more.remote()
        ends = {worker: actor.close.remote() for worker, actor in self._actors.items()}
        if ends:
            # The watches end with what was logged last.
            awaited = [*ends.values(), *list(self._watches.values())]
            ray.wait(awaited, num_returns=len(awaited), timeout=patience_s)
        for worker, end in ends.items():
            self._log_end(worker, _error_of(end))
            self.discard(worker)
        until = time.monotonic() + LAST_LINES_S
        while self._watches and time.monotonic() < until:
            time.sleep(0.001)  # what they end with is being told
        # They are told that their workers are gone; Ray may be shut down after that.
        for taker in self._takers:
            taker.join(LAST_PORTION_S)

    def _log_end(self, worker: int, error: BaseException | None) -> None:
        stage = self._stages[self._pool_of[worker]]
        if isinstance(error, RayTaskError):
            logger.warning("stage %s: close() of a worker raised: %s", stage, error.cause)
        elif isinstance(error, GetTimeoutError):
            logger.warning("stage %s: a worker that was busy was ended without close()", stage)


def _error_of(end: Any) -> BaseException | None:
    """What a call ended with, or GetTimeoutError; another error says that the worker is gone."""
    try:
        ray.get(end, timeout=0)
    except RayError as error:
        return error
    return None


def _arguments(data: Packed, stored: Sequence[Any]) -> tuple[Any, ...]:
    return (data, stored) if stored else (data,)


@ray.remote(num_cpus=0, max_retries=0)
def _read_there(path: str) -> Place | None:
    return read(path)


def _pickled(plan: Plan, pool: Pool) -> bytes:
    try:
        spec: bytes = cloudpickle.dumps(build_order(plan, pool))
    except Exception as error:
        raise StageStartError(
            f"stage {pool.stage} cannot be sent to workers: its constructor arguments and what "
            f"it captures must be picklable: {type(error).__name__}: {short(error)}"
        ) from error
    return spec


def _optioned(pool: Pool, runtime_env: Mapping[str, Any]) -> Any:
    try:
        return worker_class(pool.concurrency).options(**actor_options(pool, runtime_env))
    except (TypeError, ValueError) as error:
        raise StageStartError(
            f"stage {pool.stage}: Ray does not take its options (runtime_env, label_selector, "
            f"resources): {short(error)}"
        ) from error


def _hint(pool: Pool) -> str:
    if pool.memory_limit_mb is None:
        return ""
    return f" (memory_limit_mb={pool.memory_limit_mb}: native code that reaches it aborts)"


def actor_options(pool: Pool, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray is asked for a worker of the pool."""
    return {
        "num_cpus": pool.num_cpus,
        "num_gpus": pool.num_gpus,
        "resources": dict(pool.resources),
        "label_selector": dict(pool.label_selector) or None,
        "runtime_env": merged(runtime_env, pool.runtime_env) or None,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _lost(
    worker: int,
    pool: int,
    error: BaseException,
    built: Built | None = None,
    idle: bool = False,
    hint: str = "",
) -> WorkerIsLost:
    """A worker that Ray says is gone; one whose node was preempted or drained charges nobody."""
    charge = not getattr(error, "preempted", False)
    told = NODE_OF_DEATH.search(str(error))
    node = told[1] if told else ""
    if built is not None and isinstance(error, ActorUnavailableError):
        # A connection that breaks may be the first that is seen of a node's death.
        node = built.node
    return WorkerIsLost(worker, pool, WORKER_DIED, death(error) + hint, charge, node, idle)


def death(error: BaseException) -> str:
    """Ray's account of a death, on one line and bounded."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, RayActorError | RayError):
        lines = [line for line in lines if not line.startswith(_NOT_TOLD)]
    told, _, _ = " ".join(lines).partition(" There are some potential root causes")
    return short(RuntimeError(told[:500]))
