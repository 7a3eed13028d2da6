"""Calls that wait a little with a part-filled batch, as their stage asks to.

A Call lingers while a worker idles for it, its ready Grains do not fill a batch, and Grains of the
Calls before it are ready or in flight: only these can make more of its own ready. (New source
rows are not waited for.) Batches that are to stay as they are do not linger, nor do probes.
"""

from __future__ import annotations

from rayorch_prefect.errors import IllegalEvent
from rayorch_prefect.model.events import LingerCall
from rayorch_prefect.program.plan import Call, CallOutputOp
from rayorch_prefect.scheduler.breakers import Breakers
from rayorch_prefect.scheduler.counts import Counts
from rayorch_prefect.scheduler.queues import ReadyQueues
from rayorch_prefect.scheduler.wiring import Wiring


class Lingering:
    """Owner of which Calls linger. `turns[call]` numbers the waits of a Call, so that a wait that
    ended early is told from the next one."""

    def __init__(
        self, wiring: Wiring, queues: ReadyQueues, counts: Counts, breakers: Breakers
    ) -> None:
        plan = wiring.plan
        self._pools = plan.pools
        self._queues = queues
        self._counts = counts
        self._breakers = breakers
        self._before = [before(wiring, call) for call in plan.calls]
        self._turns = [0] * len(plan.calls)
        self._waits: set[int] = set()
        self._over: set[int] = set()
        self._asked: list[LingerCall] = []

    def holds_back(self, call: Call) -> bool:
        """Whether the Call's next batch is not to go yet, though a worker idles."""
        pool = self._pools[call.pool]
        if pool.linger_s is None:
            return False
        ready = self._counts.calls[call.id].ready
        if not 0 < ready < pool.batch_size or not self._may_wait(call.id):
            self.sent(call.id)
            return False
        if call.id in self._over:
            return False
        if call.id not in self._waits:
            self._waits.add(call.id)
            self._turns[call.id] += 1
            self._asked.append(LingerCall(call.id, self._turns[call.id]))
        return True

    def _may_wait(self, call: int) -> bool:
        """Whether more may come, and what is there may wait for it."""
        return (
            self.more_may_come(call)
            and not self._breakers.is_open(call)
            and not self._queues.has_closed(call)
        )

    def more_may_come(self, call: int) -> bool:
        """Whether a Grain is ready or in flight that the Call may get Grains from."""
        found = (self._counts.calls[one] for one in self._before[call])
        return any(one.ready or one.in_flight for one in found)

    def waits(self, call: int) -> bool:
        """Whether the Call lingers."""
        return call in self._waits

    def sent(self, call: int) -> None:
        """A batch of the Call left, or there is nothing to wait for: the next wait is another."""
        self._waits.discard(call)
        self._over.discard(call)

    def passed(self, call: int, turn: int) -> None:
        """A wait has lasted as long as the stage wants. Raises IllegalEvent if there was none."""
        if not 0 <= call < len(self._turns) or not 0 < turn <= self._turns[call]:
            raise IllegalEvent(f"Call {call} did not ask for wait {turn}")
        if call in self._waits and turn == self._turns[call]:
            self._waits.discard(call)
            self._over.add(call)

    def take_asked(self) -> list[LingerCall]:
        """The waits that have begun since this was asked."""
        asked, self._asked = self._asked, []
        return asked


def before(wiring: Wiring, call: Call) -> frozenset[int]:
    """The Calls that must end first, somewhere, so that a Grain of `call` becomes ready."""
    plan = wiring.plan
    todo, seen, found = list(call.inputs), set[int](), set[int]()
    domain: int | None = call.domain
    while domain is not None:
        todo += plan.domains[domain].expands
        domain = plan.domains[domain].parent
    while todo:
        port = todo.pop()
        if port in seen:
            continue
        seen.add(port)
        op = plan.ports[port].op
        if isinstance(op, CallOutputOp):
            found.add(op.call)
        todo += wiring.derived_from(port)
    return frozenset(found)
