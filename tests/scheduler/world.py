"""What the simulation knows of workers, batches and values, and whether an instruction may be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from rayorch_prefect.model.events import (
    Bar,
    DispatchBatch,
    EndWorker,
    Event,
    ForgetBar,
    Instruction,
    LingerCall,
    MicrobatchClosed,
    ParentCompleted,
    PauseCall,
    ReleaseValues,
    ResumeCall,
    RetireWorker,
    StartWorker,
    StopRun,
    TakeBack,
    TellBars,
)
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import (
    ContractBreach,
    Report,
    RowsReport,
)
from rayorch_prefect.program.plan import Plan, Pool
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import Phase
from rayorch_prefect.scheduler.policies import FIFO
from tests.scheduler import bounds, dooms, invariants, policies
from tests.scheduler.evaluator import Behaviour, Evaluator, Path
from tests.scheduler.verdicts import Verdicts, check_cuts
from tests.scheduler.virtual_chunks import VirtualChunks
from tests.scheduler.virtual_stages import Sent, VirtualStages

LATE_REPORTS = 6


class World:
    """Carries out what the Scheduler says, and holds it against the contract."""

    def __init__(
        self,
        plan: Plan,
        does: Behaviour,
        *,
        seed: int = 0,
        chaos: int = 0,
        microbatches: tuple[int, ...] = (2,),
        breach: float = 0.0,
        know_children: bool = False,
        policy: str = FIFO,
    ) -> None:
        self.plan = plan
        self.expected = Evaluator(plan, does)
        self.log: list[tuple[Event, list[Instruction]]] = []
        self.parents: dict[tuple[int, int], ParentCompleted] = {}
        self.sent: dict[int, Sent] = {}
        self.stopped: StopRun | None = None
        # Mostly two batches at a worker, as more can go wrong then.
        self.most_held = 1 if seed % 5 == 0 else 2
        self.may_hold = [self.most_held] * len(plan.pools)
        self.pauses_after = 1 + seed % 4
        self.bound = bounds.some_bound(seed)
        self.policy = policy
        self.scheduler = Scheduler(
            plan, self.most_held, self.pauses_after, self.bound, policies.drawn(policy)
        )
        self._pick = random.Random(seed)
        self._stages = VirtualStages(plan, does, self.expected, self._pick, breach)
        self.statistics = self._stages.statistics
        self._store = self._stages.store
        self._broken = self._stages.broken
        self._chunks = VirtualChunks(plan, self.expected, self._stages, self._pick)
        self._chaos = chaos
        self._breach = breach
        self._know_children = know_children
        self._waiting = list(enumerate(microbatches))
        self._rows: dict[int, int] = {}
        self._abandoned: set[int] = set()
        self._closed: set[int] = set()
        self._unreleased: list[tuple[int, int]] = []
        self._starting: list[int] = []
        self._pool_of: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        self._bars_at: dict[int, set[Bar]] = {}
        self._asked: list[tuple[int, int]] = []
        self._announced: set[int] = set()
        self._fenced_bars = 0
        self._gone: list[tuple[int, int]] = []
        self._late: list[tuple[int, int, Sent]] = []
        self._late_in_all = 0
        self._started: set[int] = set()
        self._failed_starts = [0] * len(plan.pools)
        self._failed_with: list[set[str]] = [set() for _ in plan.pools]
        self._tried: dict[tuple[int, Path], int] = {}
        self._too_slow: set[tuple[int, Path]] = set()
        self._verdicts = Verdicts(plan, self.expected, self._stages, self._too_slow)
        self._suspects: dict[tuple[int, Path], int] = {}
        self._companies: dict[int, int] = {}
        self._lingers: dict[int, int] = {}
        self._lingered: set[int] = set()
        self._taken_back: set[tuple[int, Path]] = set()
        self._down: set[int] = set()
        self._open: dict[int, str] = {}
        self._refused: dict[int, list[Path]] = {}
        self._longest: dict[tuple[int, Path], int] = {}
        self._served: Counter[int] = Counter()
        self._next_worker = 0

    def tell(self, event: Event) -> list[Instruction]:
        """One event in; its instructions are checked and carried out."""
        self.statistics.events += 1
        instructions = self.scheduler.handle(event)
        self.log.append((event, instructions))
        held = Counter({worker: len(batches) for worker, batches in self._held.items()})
        self._carry_out(instructions)
        policies.check(self.scheduler, self.policy, held, instructions)
        invariants.check(self.scheduler)
        self.statistics.doomed = dooms.check(self.scheduler, self._bars_at)
        for call in self.plan.calls:
            waits = self.scheduler.lingering.waits(call.id)
            assert call.id in self._lingers or not waits, "nobody will end a wait"
        self.statistics.let_past += bounds.check(
            self.scheduler, self.bound, self._store, self._stages.stored_by_calls, instructions
        )
        return instructions

    def _grain(self, order: DispatchBatch, row: int) -> tuple[int, int, int]:
        for number, first, end in order.ranges:
            if row < end - first:
                return number, order.call, first + row
            row -= end - first
        raise AssertionError("no such row")

    def _grain_phase(self, order: DispatchBatch, row: int) -> int:
        number, call, entity = self._grain(order, row)
        return self.scheduler.runs[number].mb.grains.phase[call][entity]

    def _grain_is_live(self, order: DispatchBatch, row: int) -> bool:
        number, _, _ = self._grain(order, row)
        return number in self.scheduler.runs and self._grain_phase(order, row) == Phase.IN_FLIGHT

    def _check_let_go(self, number: int, rows: list[int]) -> None:
        """What a released parent had goes at once, if no Grain of it is left to end."""
        run = self.scheduler.runs.get(number)
        if run and all(phase.count(Phase.ENDED) == len(phase) for phase in run.mb.grains.phase):
            ours = {(number, row) for row in rows}
            left = [leaf for leaf in self._store.values() if leaf and leaf[2][:2] in ours]
            assert not left, f"values of a released parent are left: {left}"

    def _forget_worker(self, worker: int) -> int:
        del self._held[worker], self._bars_at[worker]
        return self._pool_of.pop(worker)

    def _pool(self, worker: int) -> Pool:
        return self.plan.pools[self._pool_of[worker]]

    def _retired(self, worker: int) -> None:
        assert not self._held[worker], "a worker is retired that holds a batch"
        self.statistics.recycled += 1
        self._gone.append((worker, self._forget_worker(worker)))

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for one in instructions:
            match one:
                case StartWorker(pool):
                    self._starting.append(pool)
                case EndWorker(worker):
                    assert worker not in self._held, "a worker that has done nothing is ended"
                case RetireWorker(worker):
                    self._retired(worker)
                case DispatchBatch():
                    self._take(one)
                case ParentCompleted():
                    self._complete(one)
                case ReleaseValues(slot, n):
                    self._stages.release(slot, n)
                case MicrobatchClosed(number):
                    assert number not in self._closed
                    self._closed.add(number)
                case TakeBack(batch, worker):
                    assert batch in self._held[worker]
                    assert (worker, batch) not in self._asked
                    self._asked.append((worker, batch))
                case TellBars(worker, bars):
                    self._bars_at[worker].update(bars)
                case ForgetBar(worker, bar):
                    assert bar in self._bars_at[worker]
                    self._bars_at[worker].remove(bar)
                case LingerCall(call, turn):
                    assert turn > self._lingers.get(call, 0)
                    self._lingers[call] = turn
                    self._lingered.discard(call)
                case PauseCall(call):
                    self.statistics.pauses += call not in self._open
                    self._open[call] = "paused"
                case ResumeCall(call):
                    del self._open[call]
                    self._refused[call] = []
                case StopRun():
                    self.stopped = one
                    raise AssertionError(f"the run is stopped: {one}")

    def _take(self, order: DispatchBatch) -> None:
        call = self.plan.calls[order.call]
        pool = self._pool_of[order.worker]
        assert pool == call.pool
        held = self._held[order.worker]
        self._check_room(order, held)
        assert not held or order.rows == self.plan.pools[pool].batch_size, "sent ahead, not full"
        if call.id in self._open:
            assert self._open[call.id] == "asking", "a paused Call gets a batch"
            self._open[call.id] = "probing"
        held.append(order.batch)
        self._served[order.worker] += 1
        life = self.plan.pools[pool].recycle_after_batches
        assert life is None or self._served[order.worker] <= life, "a worn worker gets a batch"
        if order.worker not in self._started:
            self._started.add(order.worker)
            self._failed_starts[pool] = 0
            self._failed_with[pool].clear()
        paths = list(self._paths(order))
        assert order.batch not in self.sent
        assert len(paths) == order.rows
        assert 0 < order.rows <= self.plan.pools[pool].batch_size
        assert len(set(paths)) == len(paths), "a Grain is twice in a batch"
        tries = [self._tried.get((call.id, path), 0) for path in paths]
        assert order.generation == max(tries), "the generation is raised at each new try"
        for path, tried in zip(paths, tries, strict=True):
            self._tried[call.id, path] = tried + 1
            longest = self._longest.pop((call.id, path), order.rows)
            assert order.rows <= longest, "a suspect is not isolated"
        self._check_company(order, paths)
        self._check_linger(order, paths, tries)
        self._lingered.discard(call.id)
        self._verdicts.check_inputs(call, order, paths)
        check_cuts(order, paths)
        self.sent[order.batch] = Sent(order, paths)
        self._chunks.dispatched(self.sent[order.batch])

    def _check_room(self, order: DispatchBatch, held: list[int]) -> None:
        """Rows wait at a worker only where no other has a place for them."""
        pool = self._pool(order.worker)
        if not pool.is_concurrent:
            assert len(held) < self.may_hold[pool.id], "a worker holds more than it may"
            self.statistics.most_held = max(self.statistics.most_held, len(held) + 1)
            return
        ahead = 0 if self.most_held == 1 else max(1, pool.concurrency // 4)
        assert len(held) < pool.concurrency + ahead, "a worker holds more than it may"
        assert order.rows == 1
        if len(held) >= pool.concurrency:
            self._check_no_place(pool)

    def _check_no_place(self, pool: Pool) -> None:
        workers = self.scheduler.workers
        free = [
            worker
            for worker, held in self._held.items()
            if self._pool_of[worker] == pool.id
            and len(held) < pool.concurrency
            and worker not in workers.worn
            and worker not in workers.sealed
        ]
        assert not free, "a row waits at a worker while another has a place for it"

    def _check_linger(self, order: DispatchBatch, paths: list[Path], tries: list[int]) -> None:
        """A part-filled batch has waited, if there was anything to wait for."""
        call, pool = self.plan.calls[order.call], self._pool(order.worker)
        may_be_closed = any(tries) or any((call.id, path) in self._taken_back for path in paths)
        is_cut = bounds.bounded(self.bound, pool)
        is_cut = is_cut or self.policy == "single_parent"
        if pool.linger_s is None or order.rows == pool.batch_size or may_be_closed or is_cut:
            return
        if call.id not in self._lingered and call.id not in self._open:
            assert not invariants.more_may_come(self.scheduler, call), "it goes at once"

    def _check_company(self, order: DispatchBatch, paths: list[Path]) -> None:
        """A suspect has no more company than it may have."""
        if not self._pool(order.worker).is_concurrent:
            return
        most = self._suspects.pop((order.call, paths[0]), None)
        if most is not None:
            self._companies[order.batch] = most
        held = self._held[order.worker]
        bounds = [self._companies[batch] for batch in held if batch in self._companies]
        assert len(held) <= min(bounds, default=len(held)), "a suspect is not isolated"

    def _paths(self, order: DispatchBatch) -> Iterator[Path]:
        for number, first, end in order.ranges:
            assert first < end
            for entity in range(first, end):
                yield self._path(number, self.plan.calls[order.call].domain, entity)

    def _path(self, number: int, domain: int, entity: int) -> Path:
        """Read from lineage alone, whose own order the invariants check."""
        lineage = self.scheduler.runs[number].mb.lineage
        ordinals: list[int] = []
        while (above := self.plan.domains[domain].parent) is not None:
            parent = lineage.parent[domain][entity]
            ordinals.append(lineage.ordinal(domain, entity))
            domain, entity = above, parent
        return (number, entity, *reversed(ordinals))

    def _complete(self, told: ParentCompleted) -> None:
        key = (told.microbatch, told.row)
        assert key not in self.parents, f"{key} ends twice"
        self.parents[key] = told
        self._unreleased.append(key)
        counts = self.statistics.parents
        counts[told.outcome.value] = counts.get(told.outcome.value, 0) + 1
        if key in self._broken:
            assert told.outcome.value == "FAILED", "a broken contract is not tolerated"
            assert told.cause is not None
            assert told.cause.kind is Kind.CONTRACT_ERROR
            return
        self._verdicts.check(told, key[1] in self.scheduler.runs[key[0]].mb.doomed)
        if self._know_children:  # those that were there when the parent ended
            assert told.children <= self._verdicts.descendants(0, key)


def answers(sent: Sent, report: Report) -> bool:
    """Whether a row of the batch got a value or a typed failure, or the Program is at fault."""
    if not isinstance(report, RowsReport):
        return isinstance(report, ContractBreach)
    untyped = sum(failure.kind is None for failure in report.failures.values())
    return sent.order.rows - untyped - len(report.skipped) > 0


def node_of_death(worker: int) -> str:
    """The node that a worker dies with, if it dies before its first start; "" alone."""
    return ("", "n1", "", "n2")[worker % 4]
