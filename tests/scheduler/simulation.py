"""A virtual executor that drives the Scheduler under a seeded schedule and checks all it says.

It owns the slots: a value is a symbolic tree, stored when a report is made and gone when the
scheduler releases it. Reading a slot that is not there, or a value that lineage does not give,
is an AssertionError; so is anything left over at the end.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator

from rayorch_prefect.model.events import (
    Bar,
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    DeadlinePassed,
    DispatchBatch,
    EndWorker,
    Event,
    ForgetBar,
    Instruction,
    LingerCall,
    LingerPassed,
    MicrobatchAbandoned,
    MicrobatchClosed,
    ParentCompleted,
    PauseCall,
    ProbeDue,
    ReleaseValues,
    ResumeCall,
    RetireWorker,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    StopRun,
    TakeBack,
    TellBars,
    WorkerLost,
    WorkerReady,
    WorkerRemakes,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import Kind, Outcome
from rayorch_prefect.model.reports import (
    ContractBreach,
    Report,
    RowsReport,
)
from rayorch_prefect.program.plan import Plan, Pool
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.grains import Phase
from tests.scheduler import bounds, invariants
from tests.scheduler.evaluator import Behaviour, Evaluator, Path, failed_type
from tests.scheduler.verdicts import Verdicts, check_cuts
from tests.scheduler.virtual_chunks import VirtualChunks
from tests.scheduler.virtual_stages import Sent, Statistics, VirtualStages

MOST_EVENTS = 6000
MOST_LOSSES = 8
LATE_REPORTS = 6
MOST_OUTAGES = 3


class Simulation:
    """One run of one Program. `chaos` 0 is an orderly machine, 3 a bad night."""

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
    ) -> None:
        self.plan = plan
        self.expected = Evaluator(plan, does)
        self.log: list[tuple[Event, list[Instruction]]] = []
        self.parents: dict[tuple[int, int], ParentCompleted] = {}
        self.sent: dict[int, Sent] = {}
        self.stopped: StopRun | None = None
        # Mostly two batches at a worker, as more can go wrong then.
        self.most_held = 1 if seed % 5 == 0 else 2
        self.pauses_after = 1 + seed % 4
        self.bound = bounds.some_bound(seed)
        self.scheduler = Scheduler(plan, self.most_held, self.pauses_after, self.bound)
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

    # -- the loop -----------------------------------------------------------------------------

    def run(self) -> Statistics:
        """Until everything has come to its end; AssertionError where something is wrong."""
        with invariants.watched():
            self._carry_out(self.scheduler.start())
            while (action := self._next_action()) is not None:
                action()
                assert self.statistics.events < MOST_EVENTS, "the run does not end"
        self._check_end()
        return self.statistics

    def tell(self, event: Event) -> list[Instruction]:
        """One event in; its instructions are checked and carried out."""
        self.statistics.events += 1
        instructions = self.scheduler.handle(event)
        self.log.append((event, instructions))
        self._carry_out(instructions)
        invariants.check(self.scheduler)
        for call in self.plan.calls:
            waits = self.scheduler.lingering.waits(call.id)
            assert call.id in self._lingers or not waits, "nobody will end a wait"
        self.statistics.let_past += bounds.check(
            self.scheduler, self.bound, self._store, self._stages.stored_by_calls, instructions
        )
        return instructions

    def _next_action(self) -> Callable[[], object] | None:
        if self._chaos == 0:
            actions = list(self._useful())
            return actions[0] if actions else None
        actions = [*self._useful(), *self._useful()]
        if not actions:
            return None
        if self._chaos > 1 or self._pick.random() < 0.3:
            actions += self._troubles()
        return self._pick.choice(actions)

    def _useful(self) -> Iterator[Callable[[], object]]:
        if self._waiting:
            yield self._admit
        for pool in self._starting[:2]:
            yield lambda pool=pool: self._become_ready(pool)  # type: ignore[misc]
        for worker in [worker for worker, held in self._held.items() if held][:4]:
            sent = self.sent[self._held[worker][0]]
            if self._chunks.rows_left(sent):
                yield lambda sent=sent: self._ship(sent)  # type: ignore[misc]
            yield lambda worker=worker: self._report(worker)  # type: ignore[misc]
        for asked in self._asked[:2]:
            yield lambda asked=asked: self._answer(*asked)  # type: ignore[misc]
        if self._unreleased:
            yield self._release
        for linger in [*self._lingers.items()][:2]:
            yield lambda linger=linger: self._linger_passed(*linger)  # type: ignore[misc]
        for call in [call for call, phase in self._open.items() if phase == "paused"]:
            if call in self._down:
                yield lambda call=call: self._down.remove(call)  # type: ignore[misc]
            yield lambda call=call: self._probe(call)  # type: ignore[misc]

    def _troubles(self) -> Iterator[Callable[[], object]]:
        if self._late:
            yield self._report_late
            if self._chunks.rows_left(self._late[0][2]):
                yield self._ship_late
            batch, sender, _ = self._pick.choice(self._late)
            yield lambda: self._expect_nothing(DeadlinePassed(batch, sender))
        if self.statistics.losses < MOST_LOSSES and self._pick.random() < 0.1 + 0.15 * self._chaos:
            yield from self._losses()
        if self.statistics.deadlines < MOST_LOSSES and self._pick.random() < 0.2:
            for worker in [worker for worker, held in self._held.items() if held][:3]:
                yield lambda worker=worker: self._pass_deadline(worker)  # type: ignore[misc]
        if self._held and self.statistics.worn < MOST_LOSSES and self._pick.random() < 0.1:
            yield lambda: self._wear(self._pick.choice(sorted(self._held)))
        if self._lingers:
            call, turn = self._pick.choice(sorted(self._lingers.items()))
            if turn > 1:
                yield lambda: self._expect_nothing(LingerPassed(call, turn - 1))
        if self._gone:
            worker, pool = self._pick.choice(self._gone)
            yield lambda: self._expect_nothing(WorkerWorn(worker))
            yield lambda: self._expect_nothing(WorkerLost(worker, pool, "late", "again"))
        if (
            self.plan.calls
            and self.statistics.outages < MOST_OUTAGES
            and self._pick.random() < 0.05 * self._chaos
        ):
            yield self._go_down
        if self._closed:
            number = self._pick.choice(sorted(self._closed))
            yield lambda: self._expect_nothing(RowsReleased(number, (0,)))
            yield lambda: self._expect_nothing(MicrobatchAbandoned(number))
        if self._chaos > 2 and self._pick.random() < 0.02 and self.scheduler.runs:
            yield self._abandon

    def _go_down(self) -> None:
        self.statistics.outages += 1
        self._down.add(self._pick.randrange(len(self.plan.calls)))

    def _linger_passed(self, call: int, turn: int) -> None:
        del self._lingers[call]
        self._lingered.add(call)
        self.statistics.lingers += 1
        self.tell(LingerPassed(call, turn))
        pool, counts = self.plan.calls[call].pool, self.scheduler.counts.calls[call]
        if call not in self._open and self.scheduler.workers.idle[pool]:
            held_back = not self.scheduler.credits.room(call, 1)
            assert held_back or not counts.ready, "a wait that is over goes on"

    def _probe(self, call: int) -> None:
        self._open[call] = "asking"
        self.tell(ProbeDue(call))

    def _losses(self) -> Iterator[Callable[[], object]]:
        if self._starting and self._may_fail_start(self._starting[0]):
            yield self._lose_starting
        for worker, held in self._held.items():
            if held:
                yield lambda worker=worker: self._lose_busy(worker)  # type: ignore[misc]
            elif worker in self._started or self._may_fail_start(self._pool_of[worker]):
                yield lambda worker=worker: self._lose_idle(worker)  # type: ignore[misc]

    def _may_fail_start(self, pool: int) -> bool:
        return self._failed_starts[pool] < 2

    def _check_end(self) -> None:
        while self._late:
            self._report_late()
        assert not self.scheduler.runs, "a microbatch is left"
        assert not self._store, f"values are left: {self._store}"
        assert not self.sent
        for number, rows in self._rows.items():
            missing = [row for row in range(rows) if (number, row) not in self.parents]
            assert not missing or number in self._abandoned, f"no end of {number}/{missing}"
        for call in self.plan.calls:
            assert self.scheduler.counts.calls[call.id].ready == 0
            assert self.scheduler.counts.calls[call.id].in_flight == 0
            assert not self.scheduler.queues.ranges(call.id)
        self.statistics.forgiven = self.expected.forgiven

    # -- events -------------------------------------------------------------------------------

    def _admit(self) -> None:
        number, rows = self._waiting.pop(0)
        self._rows[number] = rows
        paths: list[Path] = [(number, row) for row in range(rows)]
        invalid = dict(self._stages.invalid_rows(number, rows))
        source = self._stages.stored(0, self.plan.source_is_mask, paths, invalid)
        told = tuple((row, "a text") for row in sorted(invalid))
        self.tell(SourceAdmitted(number, rows, source, told))

    def _become_ready(self, pool: int) -> None:
        self._starting.remove(pool)
        worker = self._next_worker
        self._next_worker += 1
        self._pool_of[worker] = pool
        self._held[worker] = []
        self._bars_at[worker] = set()
        self.tell(WorkerReady(worker, pool))
        if worker % 5 == 0:
            self._started.add(worker)
            self._failed_starts[pool] = 0
            self._failed_with[pool].clear()
            self.tell(WorkerRemakes(worker))

    def _report(self, worker: int) -> None:
        """The oldest batch of a worker comes back, or one of its rows in flight."""
        batch = self._pick_started(worker)
        sent = self.sent.pop(batch)
        if self._chaos and self._late_in_all < LATE_REPORTS and self._pick.random() < 0.1:
            self._late.append((batch, sent.order.worker, sent))
            self._late_in_all += 1
        skipped, fenced, again = self._skipped(worker, sent)
        down = self._is_out_of_reach(sent, skipped)
        if down:
            report = self._stages.out_of_reach(sent, skipped)
        else:
            report = self._stages.computed(sent, counts=True, skipped=skipped)
        for path in again if isinstance(report, RowsReport) else ():
            self._tried[sent.order.call, path] -= 1
        self._learn_bars(worker, sent, report)
        self._held[worker].remove(batch)
        bars = list(self._bars(sent, report))
        before, was_open = self._charges(), sent.order.call in self._open
        told = self.tell(BatchReported(batch, worker, report))
        self._check_pause(sent, report, down, told)
        if down and was_open:
            assert self._charges() <= before, "an outage is charged to a Grain"
        forgotten = {one.bar for one in told if isinstance(one, ForgetBar)}
        assert forgotten <= fenced, "a bar that holds is forgotten"
        if isinstance(report, RowsReport) and not self._breach:
            assert forgotten == fenced, "a bar that does not hold is kept"
        for number, call, group, present in bars:
            self._check_bar(number, call, group, present)

    def _ship(self, sent: Sent) -> None:
        """Some children of a batch that still runs arrive."""
        event = self._chunks.next(sent)
        matters = self._grain_is_live(sent.order, event.row)
        self.tell(event)
        self._announced.add(sent.order.batch)
        if matters:
            self._chunks.arrived(sent, event)
        else:
            kept = [slot for slot in self._chunks.slots(event) if slot in self._store]
            assert not kept, "children of a row that no longer matters are kept"

    def _is_out_of_reach(self, sent: Sent, skipped: tuple[int, ...]) -> bool:
        """Whether the batch meets the outage: only where its Grains can bear what it may cost."""
        call = sent.order.call
        if call not in self._down or len(skipped) == sent.order.rows:
            return False
        return call in self._open or all(
            self._stages.may_charge(sent, row) for row in range(sent.order.rows)
        )

    def _check_pause(self, sent: Sent, report: Report, down: bool, told: list[Instruction]) -> None:
        """Enough failures of the backend in a row pause the Call."""
        call = sent.order.call
        refused = self._refused.setdefault(call, [])
        if down:
            failed = len(report.failures) if isinstance(report, RowsReport) else 1
            refused += sent.paths if len(sent.paths) == 1 else [()] * failed
        elif _answers(sent, report):
            refused.clear()
            assert call not in self._open, "a Call whose backend answers is paused"
        if len(refused) >= self.pauses_after and (() in refused or len(set(refused)) > 1):
            assert call in self._open, "a Call whose backend is down goes on"

    def _skipped(self, worker: int, sent: Sent) -> tuple[tuple[int, ...], set[Bar], list[Path]]:
        """The rows that the worker does not start; bars of them that do not hold, and their rows.

        Now and then a worker knows a bar whose report did not count.
        """
        order = sent.order
        if self._chaos > 1 and self._fenced_bars < 3 and order.bars and self._pick.random() < 0.1:
            self._fenced_bars += 1
            self._bars_at[worker].add(self._pick.choice(order.bars))
        fenced: set[Bar] = set()
        again: list[Path] = []
        skipped: list[int] = []
        for row in range(order.rows if order.bars else 0):
            bar = order.bars[bisect_right(order.cuts, row)]
            if bar not in self._bars_at[worker]:
                continue
            skipped.append(row)
            run = self.scheduler.runs.get(bar[0])
            if run is not None and self._grain_phase(order, row) == Phase.IN_FLIGHT:
                fenced.add(bar)
                again.append(sent.paths[row])
        self.statistics.skipped += len(skipped)
        self.statistics.forgotten += len(fenced)
        return tuple(skipped), fenced, again

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

    def _learn_bars(self, worker: int, sent: Sent, report: Report) -> None:
        if isinstance(report, RowsReport) and sent.order.bars:
            for row, failure in report.failures.items():
                if failure.kind is Kind.GROUP_FAILURE and row < sent.order.rows:
                    self._bars_at[worker].add(sent.order.bars[bisect_right(sent.order.cuts, row)])

    def _answer(self, worker: int, batch: int) -> None:
        """A worker that was asked for a batch gives it back, or says that it has started."""
        self._asked.remove((worker, batch))
        held = self._held.get(worker, [])
        if batch not in held:
            self._expect_nothing(BatchStarted(batch, worker))
        elif batch in held[: self._pool(worker).concurrency] or (
            self._chaos > 2 and self._pick.random() < 0.2
        ):
            self._announced.add(batch)
            self.tell(BatchStarted(batch, worker))
        else:
            sent = self.sent.pop(batch)
            held.remove(batch)
            for path in sent.paths:
                self._tried[sent.order.call, path] -= 1
                self._taken_back.add((sent.order.call, path))
            self.statistics.taken_back += 1
            self.tell(BatchTakenBack(batch, worker))

    def _bars(self, sent: Sent, report: Report) -> Iterator[tuple[int, int, int, set[int]]]:
        """(microbatch, Call, parent, siblings that are PRESENT already) of a report's bars."""
        if self._breach or not isinstance(report, RowsReport):
            return
        call = self.plan.calls[sent.order.call]
        grains = [
            (number, entity)
            for number, first, end in sent.order.ranges
            for entity in range(first, end)
        ]
        for row, failure in report.failures.items():
            number, entity = grains[row]
            run = self.scheduler.runs.get(number)
            if failure.kind is not Kind.GROUP_FAILURE or not call.domain or run is None:
                continue
            if run.mb.grains.phase[call.id][entity] == Phase.IN_FLIGHT:
                group = run.mb.lineage.parent[call.domain][entity]
                outcomes = run.mb.items.outcome[call.outputs[0]]
                siblings = run.mb.lineage.members(call.domain, group)
                present = {one for one in siblings if outcomes[one] == Outcome.PRESENT}
                yield number, call.id, group, present

    def _check_bar(self, number: int, call: int, group: int, present: set[int]) -> None:
        """Siblings that had committed stay; no other may, not even of the same report."""
        mb = self.scheduler.runs[number].mb
        outcomes = mb.items.outcome[self.plan.calls[call].outputs[0]]
        for sibling in mb.lineage.members(self.plan.calls[call].domain, group):
            assert outcomes[sibling] != Outcome.PENDING, "a sibling is not barred"
            assert (outcomes[sibling] == Outcome.PRESENT) == (sibling in present)

    def _report_late(self) -> None:
        batch, worker, sent = self._late.pop(self._pick.randrange(len(self._late)))
        before = set(self._store)
        self.statistics.late += 1
        self._expect_nothing(
            BatchReported(batch, worker, self._stages.computed(sent, counts=False))
        )
        assert set(self._store) == before, "values of a late report are kept"

    def _ship_late(self) -> None:
        before = set(self._store)
        self._expect_nothing(self._chunks.next(self._late[0][2]))
        assert set(self._store) == before, "children that come late are kept"

    def _expect_nothing(self, event: Event) -> None:
        """The event comes too late: nothing may follow but the release of what it brought."""
        told = self.tell(event)
        assert all(isinstance(one, ReleaseValues) for one in told), told

    def _release(self) -> None:
        number, row = self._pick.choice(self._unreleased)
        rows = [row]
        if self._pick.random() < 0.4:
            rows = [other for at, other in self._unreleased if at == number]
        for row in rows:
            self._unreleased.remove((number, row))
            self._verdicts.check_values(self.parents[number, row])
        told = self.tell(RowsReleased(number, tuple(rows)))
        self._check_let_go(number, rows)
        for one in told:
            if isinstance(one, MicrobatchClosed):
                assert one.microbatch == number

    def _check_let_go(self, number: int, rows: list[int]) -> None:
        """What a released parent had goes at once, if no Grain of it is left to end."""
        run = self.scheduler.runs.get(number)
        if run and all(phase.count(Phase.ENDED) == len(phase) for phase in run.mb.grains.phase):
            ours = {(number, row) for row in rows}
            left = [leaf for leaf in self._store.values() if leaf and leaf[2][:2] in ours]
            assert not left, f"values of a released parent are left: {left}"

    def _abandon(self) -> None:
        number = self._pick.choice(sorted(self.scheduler.runs))
        self._abandoned.add(number)
        self._unreleased = [key for key in self._unreleased if key[0] != number]
        self.tell(MicrobatchAbandoned(number))
        self._closed.add(number)

    def _lose_starting(self) -> None:
        pool = self._starting.pop(0)
        worker = self._next_worker
        self._next_worker += 1
        node = node_of_death(worker)
        self._lost(worker, pool, started=False, node=node)
        self.tell(WorkerLost(worker, pool, "WorkerDied", "before it was ready", node=node))

    def _lose_idle(self, worker: int) -> None:
        pool = self._forget_worker(worker)
        node = node_of_death(worker)
        self._lost(worker, pool, started=worker in self._started, node=node)
        charge = self._pick.random() < 0.5
        self.tell(WorkerLost(worker, pool, "WorkerDied", "idle", charge=charge, node=node))

    def _forget_worker(self, worker: int) -> int:
        del self._held[worker], self._bars_at[worker]
        return self._pool_of.pop(worker)

    def _lose_busy(self, worker: int) -> None:
        lost = [self.sent.pop(batch) for batch in self._held[worker]]
        if self._pool(worker).is_concurrent:
            self._lose_rows(worker, lost)
            return
        begun = [one for one in lost if one is lost[0] or one.order.batch in self._announced]
        pool = self._forget_worker(worker)
        self._lost(worker, pool, started=True)
        sent, batch = lost[0], lost[0].order.batch
        charge = self._pick.random() < 0.7 and len(begun) == 1
        if sent.order.rows == 1:
            charge = charge and self._stages.may_charge(sent)
        if self._late_in_all < LATE_REPORTS and self._pick.random() < 0.5:
            self._late.append((batch, worker, sent))
            self._late_in_all += 1
        # The type of the last error is shown of a spent budget.
        kind = failed_type(Kind.ATTEMPTS_EXHAUSTED, sent.order.call)
        wanted = Counter(self._charges())
        if charge and sent.order.rows == 1 and self._grain_is_live(sent.order, 0):
            wanted[self._grain(sent.order, 0)] += 1
        self.tell(WorkerLost(worker, pool, kind, "in a batch", charge=charge))
        assert self._charges() == wanted, "the wrong Grains are charged"

    def _lose_rows(self, worker: int, lost: list[Sent]) -> None:
        """A worker with several rows in flight dies; each may be the one that did it."""
        charge = self._pick.random() < 0.7
        if len(lost) == 1:
            charge = charge and self._stages.may_charge(lost[0])
        if self._late_in_all < LATE_REPORTS and self._pick.random() < 0.5:
            sent = self._pick.choice(lost)
            self._late.append((sent.order.batch, worker, sent))
            self._late_in_all += 1
        pool = self._forget_worker(worker)
        self._lost(worker, pool, started=True)
        wanted = self._expect_companies(lost, charge)
        kind = failed_type(Kind.ATTEMPTS_EXHAUSTED, lost[0].order.call)
        self.tell(WorkerLost(worker, pool, kind, "in some row", charge=charge))
        assert self._charges() == wanted, "the wrong Grains are charged"

    def _expect_companies(self, lost: list[Sent], charge: bool) -> Counter[tuple[int, int, int]]:
        """Suspects come in smaller companies next, or as they were; returns the charges to be."""
        wanted = Counter(self._charges())
        by_call = Counter(sent.order.call for sent in lost)
        for sent in lost:
            (path,), call = sent.paths, sent.order.call
            company = self._companies.pop(sent.order.batch, None)
            if charge and len(lost) > 1:
                self.statistics.suspects += 1
                company = by_call[call] if len(by_call) > 1 else (len(lost) + 1) // 2
            elif charge:
                company = 1
                if self._grain_is_live(sent.order, 0):
                    wanted[self._grain(sent.order, 0)] += 1
            if company is not None:
                self._suspects[call, path] = company
        return wanted

    def _pool(self, worker: int) -> Pool:
        return self.plan.pools[self._pool_of[worker]]

    def _pick_started(self, worker: int) -> int:
        started = self._held[worker][: self._pool(worker).concurrency]
        return self._pick.choice(started) if self._chaos else started[0]

    def _pass_deadline(self, worker: int) -> None:
        """A batch, or the row of it that runs, takes too long; seldom one that has just ended."""
        if self._pool(worker).is_concurrent:
            self._pass_row_deadline(worker)
            return
        lost = [self.sent[batch] for batch in self._held[worker]]
        slow = lost[-1] if self._pick.random() < 0.1 else lost[0]
        pool = self.plan.pools[self._pool_of[worker]]
        row = self._pick.randrange(slow.order.rows) if pool.row_limit_s else None
        if row is not None and self._pick.random() < 0.3:
            row = None
        if row is None and pool.batch_limit_s is None and pool.row_limit_s is None:
            return
        culprit = 0 if slow.order.rows == 1 else row
        if culprit is not None and not self._stages.may_charge(slow, culprit):
            return
        self._end_slow(worker, lost, slow, row, culprit)

    def _pass_row_deadline(self, worker: int) -> None:
        """A worker with several rows in flight does not answer; any of them may be why."""
        lost = [self.sent[batch] for batch in self._held[worker]]
        if self._pool(worker).longest_row_s is None:
            return
        if len(lost) == 1 and not self._stages.may_charge(lost[0], 0):
            return
        slow = self.sent[self._pick_started(worker)]
        self.statistics.deadlines += 1
        for sent in lost:
            del self.sent[sent.order.batch]
        self._gone.append((worker, self._forget_worker(worker)))
        wanted = self._expect_companies(lost, charge=True)
        if len(lost) == 1 and self._grain_is_live(slow.order, 0):
            self._too_slow.add((slow.order.call, slow.paths[0]))
        told = self.tell(DeadlinePassed(slow.order.batch, worker))
        assert EndWorker(worker) in told, "a worker that does not answer goes on"
        assert self._charges() == wanted, "the wrong Grains are charged"

    def _end_slow(
        self, worker: int, lost: list[Sent], slow: Sent, row: int | None, culprit: int | None
    ) -> None:
        self.statistics.deadlines += 1
        self.statistics.row_deadlines += row is not None
        for sent in lost:
            del self.sent[sent.order.batch]
        if self._late_in_all < LATE_REPORTS and self._pick.random() < 0.5:
            self._late.append((slow.order.batch, worker, slow))
            self._late_in_all += 1
        self._gone.append((worker, self._forget_worker(worker)))
        before = self._charges()
        wanted = Counter(before)
        if culprit is not None and self._grain_is_live(slow.order, culprit):
            wanted[self._grain(slow.order, culprit)] += 1
            self._too_slow.add((slow.order.call, slow.paths[culprit]))
        half = (slow.order.rows + 1) // 2
        for path in slow.paths if row is None else [slow.paths[row]]:
            self._longest[slow.order.call, path] = half if row is None else 1
        told = self.tell(DeadlinePassed(slow.order.batch, worker, row))
        assert EndWorker(worker) in told, "a worker that is too slow goes on"
        assert self._charges() == wanted, "the wrong Grains are charged"

    def _charges(self) -> Counter[tuple[int, int, int]]:
        return Counter(
            {
                (number, call, entity): n
                for number, run in self.scheduler.runs.items()
                for call, attempts in enumerate(run.mb.grains.attempts)
                for entity, n in attempts.items()
            }
        )

    def _wear(self, worker: int) -> None:
        """A worker has grown too large; what it holds it still does."""
        self.statistics.worn += 1
        idle = not self._held[worker]
        before = self._charges()
        told = self.tell(WorkerWorn(worker))
        assert (RetireWorker(worker) in told) == idle
        assert self._charges() == before

    def _retired(self, worker: int) -> None:
        assert not self._held[worker], "a worker is retired that holds a batch"
        self.statistics.recycled += 1
        self._gone.append((worker, self._forget_worker(worker)))

    def _lost(self, worker: int, pool: int, *, started: bool, node: str = "") -> None:
        self.statistics.losses += 1
        self._gone.append((worker, pool))
        if not started:
            self._failed_starts[pool] += node not in self._failed_with[pool]
            self._failed_with[pool] |= {node} - {""}

    # -- instructions -------------------------------------------------------------------------

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
            assert len(held) < self.most_held, "a worker holds more than it may"
            return
        ahead = 0 if self.most_held == 1 else max(1, pool.concurrency // 8)
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

    # -- parents ------------------------------------------------------------------------------

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
        self._verdicts.check(told)
        if self._know_children:  # those that were there when the parent ended
            assert told.children <= self._verdicts.descendants(0, key)


def _answers(sent: Sent, report: Report) -> bool:
    """Whether a row of the batch got a value or a typed failure, or the Program is at fault."""
    if not isinstance(report, RowsReport):
        return isinstance(report, ContractBreach)
    untyped = sum(failure.kind is None for failure in report.failures.values())
    return sent.order.rows - untyped - len(report.skipped) > 0


def node_of_death(worker: int) -> str:
    """The node that a worker dies with, if it dies before its first start; "" alone."""
    return ("", "n1", "", "n2")[worker % 4]
