"""A virtual executor that drives the Scheduler under a seeded schedule and checks all it says.

It owns the slots: a value is a symbolic tree, stored when a report is made and gone when the
scheduler releases it. Reading a slot that is not there, or a value that lineage does not give,
is an AssertionError; so is anything left over at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from rayorch_prefect.model.events import (
    Bar,
    BatchReported,
    BatchStarted,
    BatchTakenBack,
    DeadlinePassed,
    Event,
    ForgetBar,
    Instruction,
    LingerPassed,
    MicrobatchAbandoned,
    MicrobatchClosed,
    ProbeDue,
    ReleaseValues,
    RowsReleased,
    SourceAdmitted,
    WorkerLost,
    WorkerReady,
    WorkerRemakes,
    WorkersMayHold,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import Kind, Outcome
from rayorch_prefect.model.reports import (
    Report,
    RowsReport,
)
from rayorch_prefect.scheduler.grains import Phase
from tests.scheduler import invariants
from tests.scheduler.evaluator import Path
from tests.scheduler.losses import Losses
from tests.scheduler.virtual_stages import Sent, Statistics
from tests.scheduler.world import LATE_REPORTS, answers

MOST_EVENTS = 6000
MOST_LOSSES = 8
MOST_OUTAGES = 3


class Simulation(Losses):
    """One run of one Program. `chaos` 0 is an orderly machine, 3 a bad night."""

    def run(self) -> Statistics:
        """Until everything has come to its end; AssertionError where something is wrong."""
        with invariants.watched():
            self._carry_out(self.scheduler.start())
            if self._chaos and self.most_held > 1 and self._pick.random() < 0.5:
                for pool in self._short_pools():
                    self._batches_get_shorter(pool)
            while (action := self._next_action()) is not None:
                action()
                assert self.statistics.events < MOST_EVENTS, "the run does not end"
        self._check_end()
        return self.statistics

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
        short = self._short_pools()
        if short and self._pick.random() < 0.1:
            yield lambda: self._batches_get_shorter(self._pick.choice(short))
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

    def _short_pools(self) -> list[int]:
        return [pool.id for pool in self.plan.pools if not pool.is_concurrent]

    def _batches_get_shorter(self, pool: int) -> None:
        """Or longer: a worker may hold more of them, or fewer than it does."""
        self.may_hold[pool] = self._pick.choice([1, 2, 4, 8])
        self.tell(WorkersMayHold(pool, self.may_hold[pool]))

    def _go_down(self) -> None:
        self.statistics.outages += 1
        self._down.add(self._pick.randrange(len(self.plan.calls)))

    def _linger_passed(self, call: int, turn: int) -> None:
        del self._lingers[call]
        self._lingered.add(call)
        self.statistics.lingers += 1
        self.tell(LingerPassed(call, turn))
        pool = self.plan.pools[self.plan.calls[call].pool]
        if call not in self._open and self.scheduler.workers.idle[pool.id]:
            most = self.scheduler.dispatcher.most(self.plan.calls[call], pool)
            assert not most, "a wait that is over goes on"

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
        elif answers(sent, report):
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

    def _abandon(self) -> None:
        number = self._pick.choice(sorted(self.scheduler.runs))
        self._abandoned.add(number)
        self._unreleased = [key for key in self._unreleased if key[0] != number]
        self.tell(MicrobatchAbandoned(number))
        self._closed.add(number)
