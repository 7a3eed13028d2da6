"""The ablation's step before FIFO: pages are re-batched across parents, the newest ones first."""

from __future__ import annotations

from rayorch_prefect.scheduler import core
from rayorch_prefect.scheduler.queues import ReadyQueues


class NewestFirst(ReadyQueues):
    """Work that has just become ready goes to the head of its queue."""

    def push(self, call: int, microbatch: int, first: int, end: int) -> None:
        """One Grain after another: this is for thousands of them, not for millions."""
        for entity in reversed(range(first, end)):
            self.push_head(call, microbatch, entity)


def install() -> None:
    """Every Scheduler that this process makes from now on has these queues."""
    core.__dict__["ReadyQueues"] = NewestFirst
