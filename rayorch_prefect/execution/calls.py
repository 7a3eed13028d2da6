"""Calls to Ray that are under way, waited for by the thread that made them.

Ray's futures would call back on the thread through which all its messages pass. That thread then
waits for the interpreter's lock whenever another one computes, up to 5 ms at a time, and sends
no call meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import ray

# (what a call gave, None) or (None, what it ended with)
Then: TypeAlias = Callable[[Any, BaseException | None], None]
Step: TypeAlias = Callable[[], None]


class Calls:
    """What is to be done with what each call gives. For one thread."""

    def __init__(self) -> None:
        self._then: dict[Any, Then] = {}

    def __len__(self) -> int:
        return len(self._then)

    def expect(self, reference: Any, then: Then) -> None:
        """Do `then` once the call is over whose first return this is."""
        self._then[reference] = then

    def ended(self, patience_s: float) -> deque[Step]:
        """What is to be done for the calls that are over, in the order they were made.

        Waits for one, at most so many seconds (to a millisecond).
        """
        references = list(self._then)
        if not references:
            return deque()
        over, _ = ray.wait(references, num_returns=len(references), timeout=0)
        if not over and patience_s > 0:
            over, _ = ray.wait(references, num_returns=1, timeout=patience_s)
        return deque(
            partial(self._then.pop(reference), *answer)
            for reference, answer in zip(over, answers(over), strict=True)
        )


def answers(over: Sequence[Any]) -> list[tuple[Any, BaseException | None]]:
    """What calls that are over gave or ended with."""
    try:
        return [(given, None) for given in ray.get(list(over))]
    except Exception as error:
        if len(over) == 1:
            return [(None, error)]
    return [answer for reference in over for answer in answers([reference])]
