"""Who gets the parents of a microbatch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayorch_prefect.execution.batch import Fetch
from rayorch_prefect.execution.parent import OnParent, Parent, Payload
from rayorch_prefect.model.events import ParentCompleted
from rayorch_prefect.model.outcomes import Failure, ParentOutcome

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Owner:
    """What was submitted, and whom to tell of it."""

    rows: Sequence[Any]
    keys: Sequence[str]
    on_parent: OnParent
    started: float

    def parent(
        self,
        completed: ParentCompleted,
        payload: Payload | None,
        cause: Failure | None,
        now: float,
        fetch: Fetch,
    ) -> Parent:
        """A parent that has ended; one whose values could not be had for good is FAILED."""
        lost = completed.outcome is ParentOutcome.COMPLETED and payload is None
        return Parent(
            index=completed.row,
            row=self.rows[completed.row],
            key=self.keys[completed.row],
            outcome=ParentOutcome.FAILED if lost else completed.outcome,
            cause=cause,
            gaps=completed.gaps,
            children=completed.children,
            attempts=completed.attempts,
            started=self.started,
            finished=now,
            payload=payload,
            _fetch=fetch,
        )

    def tell(self, number: int, said: Parent | BaseException) -> bool:
        """Whether the owner took it. One that raises must not end the runs of others."""
        try:
            self.on_parent(said)
        except Exception:
            logger.exception("on_parent of microbatch %d raised; it is abandoned", number)
            return False
        return True


def named(cause: Failure | None, owners: Mapping[int, Owner]) -> Failure | None:
    """The cause; where a Grain of another parent broke the contract, with the key of that one."""
    if cause is None or cause.culprit is None:
        return cause
    microbatch, row = cause.culprit
    owner = owners.get(microbatch)
    return cause if owner is None else replace(cause, message=f"{cause.message}: {owner.keys[row]}")
