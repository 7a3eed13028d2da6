"""The scheduler: events in, instructions out.

`handle(event)` is the only writer of run state. It holds no clock, thread or I/O, so a run is
replayed by its events. An event that is impossible raises `IllegalEvent` before anything has
changed; one that merely comes too late is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import (
    Bar,
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    ChildrenArrived,
    DeadlinePassed,
    EndWorker,
    Event,
    ForgetBar,
    Instruction,
    LingerPassed,
    MicrobatchAbandoned,
    MicrobatchClosed,
    PauseCall,
    ProbeDue,
    ReleaseValues,
    ResumeCall,
    RetireWorker,
    RowsReleased,
    SourceAdmitted,
    StartWorker,
    StopRun,
    WorkerLost,
    WorkerReady,
    WorkerRemakes,
    WorkersMayHold,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import Failure, Kind, Outcome
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    OutputReport,
    Report,
    RowsReport,
)
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.breakers import PAUSES_AFTER, Breakers
from rayorch_prefect.scheduler.by_parent import ready_queues
from rayorch_prefect.scheduler.commit import Committer, slots_of, store_rows
from rayorch_prefect.scheduler.counts import Counts
from rayorch_prefect.scheduler.credits import Bound, Credits
from rayorch_prefect.scheduler.deadlines import deadline_failure
from rayorch_prefect.scheduler.dispatch import Dispatcher
from rayorch_prefect.scheduler.doom import told_of_bar, told_of_doom
from rayorch_prefect.scheduler.lingering import Lingering
from rayorch_prefect.scheduler.microbatch import Microbatch
from rayorch_prefect.scheduler.parents import completed_parent
from rayorch_prefect.scheduler.policies import FIFO, Policy, policy_of
from rayorch_prefect.scheduler.preflight import source_misfit
from rayorch_prefect.scheduler.run import Run
from rayorch_prefect.scheduler.settling import FixedPoint
from rayorch_prefect.scheduler.story import Story, in_words
from rayorch_prefect.scheduler.wiring import Wiring
from rayorch_prefect.scheduler.workers import Flight, Seal, Workers


class Scheduler:
    """State of all active microbatches of one Plan; a worker holds up to `most_held` batches,
    `pauses_after` failures of a backend in a row pause a Call, and no Call is dispatched past
    `bound`. `policy` says which ready Grains go next.

    Raises UsageError for a policy that there is not.
    """

    def __init__(
        self,
        plan: Plan,
        most_held: int = 2,
        pauses_after: int = PAUSES_AFTER,
        bound: Bound = Bound(),  # noqa: B008
        policy: str | Policy = FIFO,
    ) -> None:
        self.plan = plan
        self.options: dict[str, Any] = {
            "most_held": most_held,
            "pauses_after": pauses_after,
            "bound": (bound.values, bound.bytes),
            "policy": policy if isinstance(policy, str) else type(policy).__name__,
        }
        self.wiring = Wiring(plan)
        self.runs: dict[int, Run] = {}
        self.counts = Counts(len(plan.calls))
        self.workers = Workers(plan, most_held)
        self.breakers = Breakers(plan, pauses_after)
        self.credits = Credits(plan, self.counts, most_held, bound)
        self.queues = ready_queues(plan, self.runs, policy_of(policy))
        self.lingering = Lingering(self.wiring, self.queues, self.counts, self.breakers)
        self.stopped: StopRun | None = None
        self.memory = Story()
        self._last_microbatch = -1
        self._committer = Committer(plan, self.runs, self.queues, self.counts, self)
        self.dispatcher = Dispatcher(
            plan,
            self.runs,
            self.queues,
            self.workers,
            self.counts,
            self.breakers,
            self.lingering,
            self.credits,
        )
        self._out: list[Instruction] = []

    @classmethod
    def with_options(
        cls, plan: Plan, options: Mapping[str, Any], policy: Policy | None = None
    ) -> Scheduler:
        """One like another, by its `options` (plain data) and its policy if it has its own."""
        chosen = {"policy": policy} if policy is not None else {}
        return cls(plan, **{**options, "bound": Bound(*options["bound"]), **chosen})

    # -- the way in --------------------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """Ask for every pool's workers; to be called once, before any event."""
        for pool in self.plan.pools:
            for _ in range(pool.replicas):
                self._start_worker(pool.id)
        return self._flush()

    def handle(self, event: Event) -> list[Instruction]:
        """Apply one event and say what to do next.

        Raises IllegalEvent, with the story of what it is about, if the event cannot be.
        """
        if self.stopped is not None:
            return []
        match event:
            case SourceAdmitted():
                self._admit(event)
            case WorkerReady():
                self._worker_ready(event)
            case WorkerLost():
                self._worker_lost(event)
            case WorkerWorn():
                self._worker_worn(event)
            case WorkersMayHold():
                self._workers_may_hold(event)
            case WorkerRemakes():
                if event.worker in self.workers.pool_of:  # else it was lost meanwhile
                    self.workers.begins(event.worker)
            case BatchReported():
                self._batch_reported(event)
            case BatchStarted():
                self._batch_started(event)
            case ChildrenArrived():
                self._children_arrived(event)
            case BatchTakenBack():
                self._batch_taken_back(event)
            case DeadlinePassed():
                self._deadline_passed(event)
            case ProbeDue():
                self._probe_due(event)
            case LingerPassed():
                self.lingering.passed(event.call, event.turn)
            case RowsReleased():
                self._release_rows(event)
            case MicrobatchAbandoned():
                self._abandon(event)
        for sent in self.dispatcher.dispatch():
            self.memory.dispatched(sent.batch, sent.call, sent.worker, sent.ranges)
            self._out.append(sent)
        self._out.extend(self.lingering.take_asked())
        self._replace_worn()
        self._out.extend(self.dispatcher.ask_back())
        self.memory.now += 1
        return self._flush()

    def _flush(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    # -- microbatches --------------------------------------------------------------------------

    def _admit(self, event: SourceAdmitted) -> None:
        if event.microbatch <= self._last_microbatch:
            raise IllegalEvent(f"microbatch number {event.microbatch} was used before")
        if event.rows < 1:
            raise IllegalEvent("a microbatch has at least one row")
        breach = source_misfit(self.plan, event.rows, event.source)
        if breach is not None:
            raise IllegalEvent(
                f"the source rows of microbatch {event.microbatch}: "
                f"expected {breach.expected}, received {breach.received}"
            )
        self._last_microbatch = event.microbatch
        mb = Microbatch(self.wiring, event.microbatch, event.rows)
        run = Run(mb, FixedPoint(self.wiring, mb, self))
        self.runs[event.microbatch] = run
        invalid = dict(event.invalid)
        first = 0
        for row in (*sorted(invalid), event.rows):
            if first < row:
                store_rows(run, 0, event.source, first, row, first)
                run.settle.present(0, first, row)
            if row < event.rows:
                self.release([slots_of(event.source, row, 1)])
                self._refuse_row(run, row, invalid[row])
            first = row + 1
        run.settle.run()

    def _refuse_row(self, run: Run, row: int, received: str) -> None:
        root = self.plan.domains[0].name
        message = f"expected a source row that fits the Program, received {received}"
        failure = Failure(Kind.CONTRACT_ERROR, "ContractError", message, root, root)
        run.mb.contract[row] = failure
        run.settle.doom(row, (failure, 0))
        run.settle.settle_one(0, row, Outcome.FAILED, (failure, 0))

    def _release_rows(self, event: RowsReleased) -> None:
        run = self._active(event.microbatch)
        if run is None:
            return
        mb = run.mb
        for row in event.rows:
            if not 0 <= row < mb.rows or not mb.completed[row]:
                raise IllegalEvent(f"parent {row} of microbatch {mb.number} has not ended")
        for row in dict.fromkeys(event.rows):
            if not mb.released[row]:
                mb.released[row] = 1
                mb.unreleased -= 1
                run.settle.present(self.wiring.handed, row, row + 1)
        run.settle.run()
        if not mb.unreleased:
            self._forget(run)
            self._out.append(MicrobatchClosed(mb.number))

    def _abandon(self, event: MicrobatchAbandoned) -> None:
        run = self._active(event.microbatch)
        if run is not None:
            self._forget(run)
            self._out.extend(self.dispatcher.ask_back_useless())

    def _active(self, microbatch: int) -> Run | None:
        """None for a microbatch that has left."""
        if microbatch > self._last_microbatch:
            raise IllegalEvent(f"microbatch {microbatch} was never admitted")
        return self.runs.get(microbatch)

    def _forget(self, run: Run) -> None:
        self.release(run.mb.items.take_all())
        self.memory.microbatch_left(run.mb)
        self.dispatcher.uncount(run)
        del self.runs[run.mb.number]
        self.queues.forget(run.mb.number)

    # -- workers -------------------------------------------------------------------------------

    def _start_worker(self, pool: int) -> None:
        self.workers.starting[pool] += 1
        self._out.append(StartWorker(pool))

    def _worker_ready(self, event: WorkerReady) -> None:
        known = event.worker in self.workers.pool_of or event.worker in self.workers.gone
        if known or not self._awaited(event.pool):
            raise IllegalEvent(f"worker {event.worker} of pool {event.pool} was not asked for")
        self.workers.ready(event.worker, event.pool)

    def _awaited(self, pool: int) -> bool:
        return 0 <= pool < len(self.plan.pools) and self.workers.starting[pool] > 0

    def _worker_lost(self, event: WorkerLost) -> None:
        if event.worker in self.workers.gone:
            self.counts.stale_reports += 1
            return
        pool = self.workers.pool_of.get(event.worker)
        if pool != event.pool and (pool is not None or not self._awaited(event.pool)):
            raise IllegalEvent(f"worker {event.worker} of pool {event.pool} is not known")
        self.counts.workers_lost += 1
        worn = event.worker in self.workers.worn
        failed = AttemptFailed(event.type, event.message)
        in_company = self.workers.sealed.get(event.worker) is Seal.COMPANY
        lost = self.workers.lose(event.worker, event.pool, event.node)
        # The oldest last, so that it stands at the head of the queue.
        for flight, begun in reversed(lost):
            self.memory.ended(flight.batch, f"worker lost ({event.type}: {event.message})")
            self._came_to_nothing(flight)
            if not self.plan.pools[event.pool].is_concurrent:
                self._committer.attempt(flight, failed, charge=event.charge and begun)
        if self.plan.pools[event.pool].is_concurrent:
            flights = [flight for flight, _ in lost]
            self._committer.rows_lost(flights, failed, event.charge, in_company)
        if self.workers.never_starts(event.pool):
            stage = self.plan.pools[event.pool].stage
            self.stopped = StopRun(event.pool, stage, event.message)
            self._out.append(self.stopped)
        elif not worn:
            self._start_worker(event.pool)

    def _worker_worn(self, event: WorkerWorn) -> None:
        if event.worker in self.workers.gone:
            return
        if event.worker not in self.workers.pool_of:
            raise IllegalEvent(f"worker {event.worker} is not known")
        self.workers.wear(event.worker)
        self._replace_worn()
        self._retire(event.worker)

    def _workers_may_hold(self, event: WorkersMayHold) -> None:
        known = 0 <= event.pool < len(self.plan.pools)
        if not known or event.most < 1 or self.plan.pools[event.pool].is_concurrent:
            raise IllegalEvent(f"workers cannot hold that: {event}")
        self.workers.may_hold(event.pool, event.most)

    def _replace_worn(self) -> None:
        """Another worker is asked for as soon as one has got its last batch."""
        while self.workers.newly_worn:
            worker = self.workers.newly_worn.pop()
            self._start_worker(self.workers.pool_of[worker])

    def _retire(self, worker: int) -> None:
        if self.workers.retire(worker):
            self.counts.workers_recycled += 1
            self._out.append(RetireWorker(worker))

    def _deadline_passed(self, event: DeadlinePassed) -> None:
        """The worker is replaced; what it held beside that batch returns uncharged."""
        flight = self._flight(event.batch, event.worker)
        if flight is None:
            return
        pool = self.plan.pools[self.plan.calls[flight.call].pool]
        failed = deadline_failure(pool, flight.rows, event.row)
        if failed is None:
            raise IllegalEvent(f"no such limit of stage {pool.stage}: {event}")
        self.counts.deadlines_passed += 1
        worn = event.worker in self.workers.worn
        self._out.append(EndWorker(event.worker))
        lost = [held for held, _ in self.workers.lose(event.worker, pool.id)]
        for held in reversed(lost):
            self._came_to_nothing(held)
            if pool.is_concurrent:
                self.memory.ended(held.batch, f"its worker was ended ({failed.message})")
            elif held is not flight:
                self.memory.ended(held.batch, "its worker was ended for another batch")
                self._committer.attempt(held, failed, charge=False)
            else:
                self.memory.ended(held.batch, failed.message)
                self._apply_deadline(held, event.row, failed)
        if pool.is_concurrent:
            self._committer.suspects(lost, failed, charge=True)
        if not worn:
            self._start_worker(pool.id)

    def _apply_deadline(self, flight: Flight, row: int | None, failed: AttemptFailed) -> None:
        if row is None:
            self._committer.attempt(flight, failed, charge=True)
        else:
            self._committer.row_failed_alone(flight, row, failed)

    # -- batches -------------------------------------------------------------------------------

    def _batch_reported(self, event: BatchReported) -> None:
        flight = self._flight(event.batch, event.worker)
        if flight is None:
            self.counts.stale_reports += 1
            self._let_go(event.report)
            return
        self.workers.land(event.batch)
        self.memory.ended(event.batch, in_words(event.report), event.report)
        if isinstance(report := event.report, RowsReport):
            made = flight.rows - len(report.failures) - len(report.skipped)
            self.credits.stored(flight.call, made, report.outputs)
        verdict = self.breakers.told(flight, event.report)
        self._apply(flight, event.report, verdict.charge)
        if verdict.pauses:
            self._pause(flight.call)
        if verdict.resumes:
            self._out.append(ResumeCall(flight.call))
        self._retire(event.worker)

    def _flight(self, batch: int, worker: int) -> Flight | None:
        """None for a batch that has ended; it may not be another worker's."""
        flight = self.workers.flights.get(batch)
        if flight is None and not self.dispatcher.was_sent(batch):
            raise IllegalEvent(f"batch {batch} was never sent")
        if flight is not None and flight.worker != worker:
            told = self.memory.of_batch(batch)
            raise IllegalEvent(f"worker {worker} speaks of what it was not sent: {told}")
        return flight

    def _batch_started(self, event: BatchStarted) -> None:
        if self._flight(event.batch, event.worker) is not None:
            self.workers.announced.add(event.batch)

    def _children_arrived(self, event: ChildrenArrived) -> None:
        flight = self._flight(event.batch, event.worker)
        if flight is None:
            self.release((output.first_slot, output.slots) for output in event.outputs)
            return
        self._committer.chunk(flight, event)
        self.workers.announced.add(event.batch)

    def _batch_taken_back(self, event: BatchTakenBack) -> None:
        flight = self._flight(event.batch, event.worker)
        if flight is None:
            return
        if event.batch not in self.workers.asked_back or event.batch in self.workers.announced:
            raise IllegalEvent(f"batch {event.batch} was not to be taken back")
        self.workers.land(event.batch)
        self.memory.ended(event.batch, "taken back before it started")
        self._came_to_nothing(flight)
        self._committer.taken_back(flight)
        self._retire(event.worker)

    def _apply(self, flight: Flight, report: Report, charge_backend: bool) -> None:
        match report:
            case RowsReport():
                self._committer.rows(flight, report, charge_backend=charge_backend)
            case AttemptFailed():
                charge = charge_backend or not report.backend
                self._committer.attempt(flight, report, charge=charge)
            case ContractBreach():
                self._committer.breach(flight, report)

    def _probe_due(self, event: ProbeDue) -> None:
        if not 0 <= event.call < len(self.plan.calls):
            raise IllegalEvent(f"there is no Call {event.call}")
        if not self.breakers.waits(event.call):
            return
        if event.given_up:
            pool = self.plan.pools[self.plan.calls[event.call].pool]
            _, last = self.breakers.paused(event.call)
            self.stopped = StopRun(pool.id, pool.stage, last, backend=True)
            self._out.append(self.stopped)
        else:
            self.breakers.ask(event.call)

    def _came_to_nothing(self, flight: Flight) -> None:
        if self.breakers.came_to_nothing(flight.call, flight.batch):
            self._pause(flight.call)

    def _pause(self, call: int) -> None:
        self._out.append(PauseCall(call, *self.breakers.paused(call)))

    def _let_go(self, report: Report) -> None:
        if isinstance(report, RowsReport):
            self.release((output.first_slot, output.slots) for output in report.outputs)

    # -- what the fixed point tells --------------------------------------------------------------

    def grains_ready(self, call: int, microbatch: int, first: int, end: int) -> None:
        """See `Outlet`."""
        self.counts.calls[call].ready += end - first
        self.memory.ready(call, microbatch, first, end)
        self.queues.push(call, microbatch, first, end)

    def grains_suppressed(self, call: int, n: int, ready: int = 0, doomed: int = 0) -> None:
        """See `Outlet`."""
        self.counts.suppressed(call, n, ready, doomed)

    def parents_doomed(self, microbatch: Microbatch) -> None:
        """See `Outlet`."""
        self._out += told_of_doom(self.wiring, microbatch, self.workers.flights.values())
        self._out.extend(self.dispatcher.ask_back_useless())

    def values_arrived(self, call: int, outputs: Sequence[OutputReport]) -> None:
        """See `Outlet`."""
        self.credits.stored(call, 0, outputs)

    def release(self, ranges: Iterable[tuple[int, int]]) -> None:
        """See `Outlet`."""
        for slot, n in ranges:
            if n:
                self.credits.released(slot, n)
                self._out.append(ReleaseValues(slot, n))

    def barred(self, bar: Bar, worker: int) -> None:
        """See `Outlet`."""
        mb = self.runs[bar[0]].mb
        others = (one for one in self.workers.flights.values() if one.worker != worker)
        self._out += told_of_bar(self.wiring, mb, bar, others)

    def bar_unknown(self, worker: int, bar: Bar) -> None:
        """See `Outlet`."""
        self._out.append(ForgetBar(worker, bar))

    def parent_ended(self, microbatch: Microbatch, row: int) -> None:
        """See `Outlet`."""
        self._out.append(completed_parent(self.wiring, microbatch, row))
