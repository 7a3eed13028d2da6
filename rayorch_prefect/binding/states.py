"""The final state of a night or a microbatch, from the counts of its row outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from rayorch_prefect.binding.failure_policies import FailurePolicy, Totals
from rayorch_prefect.binding.tallies import Tally, first_reasons
from rayorch_prefect.errors import RayorchError
from rayorch_prefect.model.outcomes import Kind

NONE_TOLERATED = FailurePolicy()
PARTIALLY_COMPLETED = "PartiallyCompleted"


class RowsFailed(RayorchError):
    """More source rows failed than the failure policy tolerates, or some were not processed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state before it is Prefect's: `name` None means the plain Completed or Failed."""

    completed: bool
    name: str | None
    message: str


def judge(
    counts: Tally,
    policy: FailurePolicy = NONE_TOLERATED,
    what_next: str = "",
    night: Totals | None = None,
) -> Verdict:
    """Judge counts: Completed, PartiallyCompleted, or Failed under the gravest kind's name.

    `policy` says which failures are tolerated, of the whole `night` where these are the counts of
    a part of it; a ContractError never is. Rows that were not processed make it Failed whatever
    the policy says, but for those that the user's own limit left out.
    """
    totals = night or Totals.of(counts)
    completed = _tolerated(counts, policy, totals)
    name = _completed_name(counts) if completed else _failed_name(counts, policy)
    return Verdict(completed, name, _message(counts, policy.tolerated(totals), what_next))


def to_state(verdict: Verdict) -> State[Any]:
    """Prefect's state; a Failed one carries an exception with the same message as its data."""
    if verdict.completed:
        return Completed(message=verdict.message, name=verdict.name)
    return Failed(message=verdict.message, data=RowsFailed(verdict.message), name=verdict.name)


def cancelled(counts: Tally, reason: str, what_next: str = "") -> State[Any]:
    """The state of a night or microbatch that was asked to stop, with what it got done."""
    # The state's name says it; a reason that stands in a row does so itself.
    said = [reason.removeprefix("cancelled: "), str(counts)]
    return Cancelled(message=_sentences(said, what_next))


def _tolerated(counts: Tally, policy: FailurePolicy, night: Totals) -> bool:
    contract = counts.by_kind.get(Kind.CONTRACT_ERROR, 0)
    if counts.broken_off or contract or policy.stopped_by(counts):
        return False
    return not counts.failed or policy.tolerates(night)


def _completed_name(counts: Tally) -> str | None:
    return PARTIALLY_COMPLETED if counts.failed or counts.with_gaps else None


def _failed_name(counts: Tally, policy: FailurePolicy) -> str | None:
    # A run that broke off says nothing of a kind, unless the program itself is at fault, or the
    # failure is what it broke off for.
    gravest = counts.gravest
    told = gravest is Kind.CONTRACT_ERROR or policy.stopped_by(counts)
    if gravest is None or (counts.broken_off and not told):
        return None
    return gravest.value


def _message(counts: Tally, tolerated: str, what_next: str) -> str:
    parts = [str(counts)]
    if counts.failed:
        kinds = sorted(counts.by_kind, key=lambda kind: kind.gravity)
        listed = ", ".join(f"{counts.by_kind[kind]} {kind.value}" for kind in kinds)
        parts.append(f"failed by kind: {listed}; tolerated: {tolerated}")
    if counts.causes:
        parts.append("first causes: " + " | ".join(counts.causes))
    if counts.reasons:
        parts.append("not processed because: " + " | ".join(first_reasons(counts.reasons)))
    return _sentences(parts, what_next)


def _sentences(parts: list[str], what_next: str) -> str:
    # It ends with the command and no full stop, which would be pasted with it.
    said = ". ".join(part.rstrip(".") for part in parts) + "."
    return f"{said} next: {what_next}" if what_next else said
