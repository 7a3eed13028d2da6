"""Which batch, and which row of it, the code that runs in this worker now belongs to.

Rows that run beside each other on an event loop have a context each. Where rows run one after
another, threads that a stage started belong to the row that runs, though they have another context.
"""

from __future__ import annotations

from contextvars import ContextVar

from rayorch_prefect.execution.bars import Gate

_of_this_row: ContextVar[Gate | None] = ContextVar("rayorch_row", default=None)
_alone: Gate | None = None


def begin(gate: Gate) -> None:
    """The batch of this gate runs, and no other."""
    global _alone
    _alone = gate


def end() -> None:
    """No batch runs."""
    global _alone
    _alone = None


def begin_beside(gate: Gate) -> None:
    """A batch runs beside others, in the context of whoever calls this."""
    _of_this_row.set(gate)


def here() -> Gate | None:
    """The gate of the batch that the caller belongs to; None if there is none, or not only one."""
    return _of_this_row.get() or _alone
