"""Who gets the parents of a microbatch."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayorch_prefect.execution.parent import OnParent, Parent
from rayorch_prefect.model.outcomes import Failure

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Owner:
    """What was submitted, and whom to tell of it."""

    rows: Sequence[Any]
    keys: Sequence[str]
    on_parent: OnParent
    started: float

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
