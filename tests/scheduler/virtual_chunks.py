"""Virtual workers that hand over children while their batch still runs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from rayorch_prefect.model.events import ChildrenArrived
from rayorch_prefect.program.plan import Plan
from tests.scheduler.evaluator import Evaluator, Path
from tests.scheduler.virtual_stages import Sent, VirtualStages


class VirtualChunks:
    """What each try of a row has handed over, and what the Scheduler took of it."""

    def __init__(
        self, plan: Plan, expected: Evaluator, stages: VirtualStages, pick: random.Random
    ) -> None:
        self._plan = plan
        self._expected = expected
        self._stages = stages
        self._pick = pick
        self._taken: dict[tuple[int, Path], int] = {}

    def dispatched(self, sent: Sent) -> None:
        """A try begins after the children that were taken of the tries before it."""
        order = sent.order
        wanted = {
            row: self._taken[order.call, path]
            for row, path in enumerate(sent.paths)
            if (order.call, path) in self._taken
        }
        assert dict(order.taken) == wanted, f"{order.taken} are not the children taken: {wanted}"
        sent.shipped.update(wanted)

    def rows_left(self, sent: Sent) -> list[int]:
        """Rows with children to come."""
        call = self._plan.calls[sent.order.call]
        return [row for row in range(sent.order.rows) if call.chunked and self._left(sent, row)]

    def _left(self, sent: Sent, row: int) -> int:
        port = self._plan.calls[sent.order.call].outputs[0]
        made = self._expected.made(port, sent.paths[row])
        return len(made[1]) - sent.shipped.get(row, 0)

    def next(self, sent: Sent) -> ChildrenArrived:
        """Some children of some row."""
        call = self._plan.calls[sent.order.call]
        row = self._pick.choice(self.rows_left(sent))
        first = sent.shipped.get(row, 0)
        end = first + self._pick.randint(1, self._left(sent, row))
        sent.shipped[row] = end
        outputs = tuple(
            self._stages.stored(port, is_mask, [sent.paths[row]], (), {0: (first, end)})
            for port, is_mask in zip(call.outputs, call.masks, strict=True)
        )
        return ChildrenArrived(sent.order.batch, sent.order.worker, row, first, outputs)

    def arrived(self, sent: Sent, event: ChildrenArrived) -> None:
        """The Scheduler has taken them."""
        self._taken[sent.order.call, sent.paths[event.row]] = sent.shipped[event.row]
        self._stages.statistics.chunks += 1

    def slots(self, event: ChildrenArrived) -> Iterator[int]:
        """Where they lie."""
        for output in event.outputs:
            yield from range(output.first_slot, output.first_slot + output.slots)
