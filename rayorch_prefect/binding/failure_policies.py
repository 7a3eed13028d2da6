"""How many failed sources a night tolerates, and which failure stops it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.errors import RayorchError, UsageError
from rayorch_prefect.model.outcomes import Failure, Kind

FAIL_FAST = "fail-fast"
_STOP = "stop="
_ANY = "any"
# One or two letters of a kind's name, or UploadFailure; a type such as CropFailure is none of them.
_LIKE_A_KIND = 0.88
_TYPES_NAMED = 5
_KINDS = {kind.value.lower(): kind.value for kind in Kind}
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
        run = counts.total - counts.skipped - counts.counted_again - counts.left_out
        return cls(counts.total, counts.failed, run, counts.failed - counts.remembered)


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """`count` failed sources are tolerated, or the `share` of them (0 to 1); a failure whose kind
    or type is in `stops` ends the night, with "any" each does."""

    text: str = "0"
    count: int = 0
    share: Fraction | None = None
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

    def unmatched(self, types: Iterable[str]) -> str:
        """That names which are no kind were none of these types either, in one line; or empty.

        Types are free texts, so that a misspelled one shows only by what did fail.
        """
        found = sorted(types)
        missed = sorted(self.stops - {_ANY, *_KINDS.values(), *found})
        if not missed or not found:
            return ""
        return (
            f"failure_policy {self.text!r}: no failure was of type {' or '.join(missed)}; "
            f"there were {_listed(found)}{_meant(missed, found)}"
        )

    def tolerated(self, totals: Totals) -> str:
        """What is tolerated and, of a share, of how many sources."""
        if self.share is None:
            return self.text
        return f"{self.text} (of all {totals.sources}, and of the {totals.run} that this night ran)"

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
    if name.lower() == _ANY:
        return _ANY
    if not name.isidentifier():
        raise _refused(asked)
    near = get_close_matches(name.lower(), _KINDS, 1, _LIKE_A_KIND)
    if near and near[0] != name.lower():
        raise UsageError(
            f"failure_policy is {asked!r}; there is no kind {name}. "
            f"Did you mean {_KINDS[near[0]]}? The kinds are {', '.join(_KINDS.values())}"
        )
    return _KINDS[near[0]] if near else name


def _listed(types: list[str]) -> str:
    more = len(types) - _TYPES_NAMED
    return ", ".join(types[:_TYPES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _meant(missed: list[str], types: list[str]) -> str:
    by_lower = {name.lower(): name for name in types}
    near = [each for name in missed for each in get_close_matches(name.lower(), by_lower, 1)]
    return f". Did you mean {' or '.join(by_lower[each] for each in near)}?" if near else ""


def _share(asked: int | str, percent: str) -> Fraction:
    # As floats 29 % of 100 would be a little less than 29.
    share = Fraction(percent) / 100
    if share > 1:
        raise _refused(asked)
    return share


def _refused(asked: int | str) -> UsageError:
    return UsageError(f"failure_policy is {asked!r}; {_EXPECTED}")
