"""Reservation policies: which ready Grains of a Call go next.

`fifo`, the default, is the order of arrival and needs no policy: see `queues.py`. For any other the
open work of a Call is kept by parent (`by_parent.py`), and a policy says of each parent how it
ranks and how many of its Grains may be in flight while others have work. It decides nothing else:
no policy idles a worker, changes an outcome or breaks up a batch that is to stay together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rayorch_prefect.errors import UsageError

# Grains that a parent may have in flight before the first one of it has come back. Few, as all
# but one of them are lost if that one spoils its parent; not one, as each of them makes a run of
# its own in a batch.
CANARIES = 4


@dataclass(slots=True, eq=False)
class ParentWork:
    """The Grains of one Call under one parent: row `row` of a microbatch.

    `arrived` numbers the parents of a Call in the order in which they got their first ready
    Grain. `size` Grains are known, `in_flight` of them at workers; `done` have been committed.
    """

    call: int
    microbatch: int
    row: int
    arrived: int
    size: int = 0
    in_flight: int = 0
    done: int = 0


@runtime_checkable
class Policy(Protocol):
    """What a policy is asked; the answers may depend on the work alone, not on time or chance.

    They are asked anew whenever a Grain of that work became ready, was sent or came back:

        class SmallestFirst:
            one_parent = False

            def rank(self, work: ParentWork) -> float:
                return work.size

            def most(self, work: ParentWork) -> int | None:
                return None
    """

    @property
    def one_parent(self) -> bool:
        """Whether a batch holds Grains of one parent only."""
        ...

    def rank(self, work: ParentWork) -> float:
        """The lowest goes first, of equals the one that arrived first."""
        ...

    def most(self, work: ParentWork) -> int | None:
        """How many Grains may be in flight while other parents' Grains fill the workers; None:
        any number. What is beyond it still fills up a batch for a worker that would idle."""
        ...


def ranked(policy: Policy, work: ParentWork) -> tuple[float, int | None]:
    """What a policy answers of some work: its rank, and how many Grains may be in flight.

    Raises UsageError, naming the policy, for an answer that is none.
    """
    name = type(policy).__name__
    try:
        rank, most = policy.rank(work), policy.most(work)
    except Exception as error:
        raise UsageError(f"policy {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(rank, int | float) or rank != rank:
        raise UsageError(f"policy {name}: rank() gave {rank!r}; expected a number")
    if most is not None and (not isinstance(most, int) or most < 0):
        raise UsageError(
            f"policy {name}: most() gave {most!r}; expected None, or a number of Grains"
        )
    return rank, most


class Unordered:
    """Without regard to the order of arrival: the newest parent first (the paper's ablation)."""

    one_parent = False

    def rank(self, work: ParentWork) -> float:
        """The newest is the lowest."""
        return -work.arrived

    def most(self, work: ParentWork) -> int | None:
        """Any number."""
        return None


class SingleParent:
    """A batch holds Grains of one parent only (the paper's ablation)."""

    one_parent = True

    def rank(self, work: ParentWork) -> float:
        """All are equal."""
        return 0

    def most(self, work: ParentWork) -> int | None:
        """Any number."""
        return None


class LongestFirst:
    """The parent with the most Grains to go first, so that no long one is left for the end."""

    one_parent = False

    def rank(self, work: ParentWork) -> float:
        """By what is known of it and not done."""
        return work.done - work.size

    def most(self, work: ParentWork) -> int | None:
        """Any number."""
        return None


class Canary:
    """`first` Grains of a parent go ahead; twice as many may follow with each round that came back.
    So little is computed for a parent that its first Grains show to be lost."""

    one_parent = False

    def __init__(self, first: int = CANARIES) -> None:
        self._first = first

    def rank(self, work: ParentWork) -> float:
        """All are equal."""
        return 0

    def most(self, work: ParentWork) -> int | None:
        """One more for each that came back doubles them with each round."""
        return self._first + work.done


FIFO = "fifo"
_NAMED: dict[str, Callable[[], Policy]] = {
    "unordered": Unordered,
    "single_parent": SingleParent,
    "canary": Canary,
    "longest_first": LongestFirst,
}
POLICIES = (FIFO, *_NAMED)


def policy_of(asked: str | Policy) -> Policy | None:
    """The policy of a name, or the one that was handed over; None for `fifo`.

    Raises UsageError for anything else.
    """
    if asked == FIFO:
        return None
    if isinstance(asked, str):
        if asked in _NAMED:
            return _NAMED[asked]()
        raise UsageError(f"there is no policy {asked!r}; expected one of {', '.join(POLICIES)}")
    if isinstance(asked, type) or not isinstance(asked, Policy):
        raise UsageError(
            f"{asked!r} is no policy: expected one of {', '.join(POLICIES)}, or an object with "
            "`one_parent`, `rank(work)` and `most(work)`"
        )
    return asked
