"""How many failed sources a night tolerates, and which failure stops it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.errors import RayorchError, UsageError
from rayorch_prefect.model.outcomes import Failure, Kind

FAIL_FAST = "fail-fast"
_STOP = "stop="
_ANY = "any"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_EXPECTED = (
    'expected a number of failed sources to tolerate ("3", 0 for none) or a share of them ("5%"); '
    f'"{FAIL_FAST}" to stop at the first; or "{_STOP}UploadFailed", a kind or type of failure that '
    "stops the night; several with commas between"
)


class StoppedAtFailure(RayorchError):
    """A source failed in a way at which the failure policy stops the night."""


@dataclass(frozen=True, slots=True)
class Totals:
    """A night's sources: how many it has and how many of them it runs, and how many failed of
    all, and of those that it ran."""

    sources: int
    failed: int
    run: int
    failed_now: int

    @classmethod
    def of(cls, counts: Tally) -> Totals:
        """Those of a night that has ended."""
        run = counts.total - counts.skipped - counts.remembered - counts.left_out
        return cls(counts.total, counts.failed, run, counts.failed - counts.remembered)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """`count` failed sources are tolerated, or the `share` of them (0 to 1); a failure whose kind
    or type is in `stops` ends the night, with "any" each does."""

    text: str = "0"
    count: int = 0
    share: float | None = None
    stops: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, asked: int | str) -> FailurePolicy:
        """From a number, or words like "5%, stop=UploadFailed". Raises UsageError."""
        text, count, share = str(asked).strip(), None, None
        stops: set[str] = set()
        for word in (part.strip() for part in text.split(",")):
            if word == FAIL_FAST:
                stops.add(_ANY)
            elif word.startswith(_STOP):
                stops.add(_stop(asked, word.removeprefix(_STOP).strip()))
            elif count is None and share is None and word.isdecimal():
                count = int(word)
            elif count is None and share is None and (found := _SHARE.fullmatch(word)):
                share = _share(asked, found.group(1))
            else:
                raise _refused(asked)
        return cls(text, count or 0, share, frozenset(stops))

    def stops_at(self, failure: Failure) -> bool:
        """Whether this failure ends the night."""
        return bool(self.stops & {_ANY, failure.kind.value, failure.type})

    def stopped_by(self, counts: Tally) -> bool:
        """Whether one of these rows, if they ran, ended the night."""
        names = {kind.value for kind in counts.by_kind} | set(counts.by_type)
        return bool(counts.failed > counts.remembered and self.stops & {_ANY, *names})

    def tolerates(self, totals: Totals) -> bool:
        """Whether the night is still good with these.

        A share is one of all sources, and must hold for those that were run too: a night of few
        new sources that all fail is no good night because many were published before.
        """
        if self.share is None:
            return totals.failed <= self.count
        return (
            totals.failed <= self.share * totals.sources
            and totals.failed_now <= self.share * totals.run
        )


def _stop(asked: int | str, name: str) -> str:
    for known in (_ANY, *(kind.value for kind in Kind)):
        if name.lower() == known.lower():
            return known
    if not name.isidentifier():
        raise _refused(asked)
    return name


def _share(asked: int | str, percent: str) -> float:
    if float(percent) > 100:
        raise _refused(asked)
    return float(percent) / 100


def _refused(asked: int | str) -> UsageError:
    return UsageError(f"failure_policy is {asked!r}; {_EXPECTED}")
