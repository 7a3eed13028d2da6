"""The troubles of the simulation's workers: deaths, limits, wear."""

from __future__ import annotations

from collections import Counter

from rayorch_prefect.model.events import (
    DeadlinePassed,
    EndWorker,
    RetireWorker,
    WorkerLost,
    WorkerWorn,
)
from rayorch_prefect.model.outcomes import Kind
from tests.scheduler.evaluator import failed_type
from tests.scheduler.virtual_stages import Sent
from tests.scheduler.world import LATE_REPORTS, World, node_of_death


class Losses(World):
    """Workers that die, run late or wear out, and what must follow."""

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

    def _lost(self, worker: int, pool: int, *, started: bool, node: str = "") -> None:
        self.statistics.losses += 1
        self._gone.append((worker, pool))
        if not started:
            self._failed_starts[pool] += node not in self._failed_with[pool]
            self._failed_with[pool] |= {node} - {""}
