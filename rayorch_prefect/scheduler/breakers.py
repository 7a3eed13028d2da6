"""Calls whose stage cannot reach its backend: they pause, probe, and at last end the run.

A *backend failure* is an attempt that failed because a service behind the stage was down, not
because of the row. While nothing else comes back from a Call, such failures soon are nobody's:
the Call is paused, its Grains return uncharged, and one batch at a time probes. (The circuit
breaker of Nygard, "Release It!", 2007.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from rayorch_prefect.model.events import EntityRange
from rayorch_prefect.model.reports import AttemptFailed, ContractBreach, Report, RowsReport
from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.workers import Flight

# Backend failures in a row that pause a Call, if they are not one Grain's alone: a lone row whose
# own fault looks like the backend's is to be spent, not waited for.
PAUSES_AFTER = 3


class BreakerPhase(Enum):
    """Whether a Call's backend is up, as far as is known."""

    CLOSED = auto()  # all is well
    PAUSED = auto()  # nothing is sent
    ASKING = auto()  # one batch may be sent
    PROBING = auto()  # that batch is out


MOVES = {
    (BreakerPhase.CLOSED, BreakerPhase.PAUSED): "enough backend failures in a row, and not of one "
    "Grain alone",
    (BreakerPhase.PAUSED, BreakerPhase.ASKING): "it is time for a probe",
    (BreakerPhase.ASKING, BreakerPhase.PROBING): "the probe was sent",
    (BreakerPhase.PROBING, BreakerPhase.PAUSED): "the probe failed, was lost or taken back",
    (BreakerPhase.PROBING, BreakerPhase.CLOSED): "some row got an answer",
    (BreakerPhase.PAUSED, BreakerPhase.CLOSED): "some row of an earlier batch got an answer",
    (BreakerPhase.ASKING, BreakerPhase.CLOSED): "some row of an earlier batch got an answer",
}
"""What moves a Call's breaker."""


@dataclass(slots=True)
class _Breaker:
    never: bool
    phase: BreakerPhase = BreakerPhase.CLOSED
    failures: int = 0
    only: EntityRange | None = None  # the one Grain that all these failures are of
    probe: int = -1
    probes: int = 0
    last: str = ""

    def move(self, phase: BreakerPhase) -> None:
        """Go to another phase."""
        assert (self.phase, phase) in MOVES, f"{self.phase.name} -> {phase.name}"
        self.phase = phase


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a report says of a Call: whether its attempts are charged, and what changes."""

    charge: bool = True
    pauses: bool = False
    resumes: bool = False


class Breakers:
    """Owner of which Calls are paused."""

    def __init__(self, plan: Plan, pauses_after: int) -> None:
        pools = [plan.pools[call.pool] for call in plan.calls]
        self._pauses_after = pauses_after
        self._breakers = [_Breaker(pool.backend_patience_s is None) for pool in pools]

    def limit(self, call: int, most: int) -> int:
        """How many Grains of at most `most` may go next: none of a paused Call, 1 to probe."""
        phase = self._breakers[call].phase
        if phase is BreakerPhase.CLOSED:
            return most
        return 1 if phase is BreakerPhase.ASKING else 0

    def paused(self, call: int) -> tuple[int, str]:
        """(probes that failed, what the last failure said) of a Call that is paused."""
        breaker = self._breakers[call]
        return breaker.probes, breaker.last

    def is_open(self, call: int) -> bool:
        """Whether the Call is paused or probes."""
        return self._breakers[call].phase is not BreakerPhase.CLOSED

    def waits(self, call: int) -> bool:
        """Whether the Call is paused until `ask`."""
        return self._breakers[call].phase is BreakerPhase.PAUSED

    def ask(self, call: int) -> None:
        """It is time for a probe."""
        self._breakers[call].move(BreakerPhase.ASKING)

    def sent(self, call: int, batch: int) -> None:
        """A batch left; where one was asked for it is the probe."""
        breaker = self._breakers[call]
        if breaker.phase is BreakerPhase.ASKING:
            breaker.move(BreakerPhase.PROBING)
            breaker.probe = batch

    def came_to_nothing(self, call: int, batch: int) -> bool:
        """A batch was lost or taken back; whether it was the probe, so that the pause goes on."""
        breaker = self._breakers[call]
        if breaker.phase is not BreakerPhase.PROBING or breaker.probe != batch:
            return False
        breaker.move(BreakerPhase.PAUSED)
        return True

    def told(self, flight: Flight, report: Report) -> Verdict:
        """A batch came back."""
        breaker = self._breakers[flight.call]
        if breaker.never:
            return Verdict()
        failed, last = _backend_failures(report)
        is_probe = breaker.phase is BreakerPhase.PROBING and breaker.probe == flight.batch
        if _shows_it_up(report, flight.rows) or (is_probe and not failed):
            return self._close(breaker)
        if not failed:
            return Verdict()
        breaker.last = last
        _count(breaker, failed, flight)
        if is_probe:
            breaker.move(BreakerPhase.PAUSED)
            breaker.probes += 1
            return Verdict(charge=False, pauses=True)
        enough = breaker.failures >= self._pauses_after and breaker.only is None
        opens = enough and breaker.phase is BreakerPhase.CLOSED
        if opens:
            breaker.move(BreakerPhase.PAUSED)
        return Verdict(charge=breaker.phase is BreakerPhase.CLOSED, pauses=opens)

    def _close(self, breaker: _Breaker) -> Verdict:
        resumes = breaker.phase is not BreakerPhase.CLOSED
        if resumes:
            breaker.move(BreakerPhase.CLOSED)
        breaker.failures, breaker.probes = 0, 0
        return Verdict(resumes=resumes)


def _count(breaker: _Breaker, failed: int, flight: Flight) -> None:
    grain = flight.ranges[0] if flight.rows == 1 else None
    breaker.only = grain if not breaker.failures or breaker.only == grain else None
    breaker.failures += failed


def _backend_failures(report: Report) -> tuple[int, str]:
    """How many there are, and what one says."""
    match report:
        case AttemptFailed(backend=True):
            return 1, f"{report.type}: {report.message}"
        case RowsReport():
            found = [one for one in report.failures.values() if one.backend]
            return len(found), f"{found[-1].type}: {found[-1].message}" if found else ""
        case _:
            return 0, ""


def _shows_it_up(report: Report, rows: int) -> bool:
    """Whether some row got an answer: a value, or a typed failure."""
    match report:
        case RowsReport():
            untyped = sum(failure.kind is None for failure in report.failures.values())
            return rows - untyped - len(report.skipped) > 0
        case ContractBreach():
            return True
        case AttemptFailed():
            return False
