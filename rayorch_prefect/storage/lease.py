"""One run at a time owns a (destination, program): taking, keeping and losing that lease.

The owner renews the lease's object a few times before it would expire. Who finds it held watches
it: a heartbeat shows a living owner; a lease that the owner has let go, whose process is
known to be dead, or that has expired may be taken. Where the store honours conditional writes,
two takers cannot both win. Where it does not, whoever calls must let in one at a time.

An owner that was paused past its time finds its lease taken and must not publish: `Fence` asks
that, in every process that publishes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from rayorch_prefect.errors import LeaseLost, OwnedElsewhere
from rayorch_prefect.storage.client import new_client, s3_client
from rayorch_prefect.storage.lease_file import LeaseFile, LeaseRecord, Sighting, clock
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.owner import Owner

BEATS = 6
"""Heartbeats in the time after which a lease expires."""

FENCE_SECONDS = 2.0
"""How long a process that publishes trusts what it has seen of the lease."""

_ROUNDING = 1.0
_ATTEMPTS = 2
_LONGEST_REQUEST = 10.0
_POLL_SECONDS = 0.5

Pause = Callable[[float], object]

# By token: until when, by `clock()`, the lease was seen to hold. One a process that publishes.
_trusted: dict[str, float] = {}


class Lease:
    """A lease that is held. `taken_from` is the record of an owner that died holding it, if any.

    `renew` and `release` are for one thread at a time.
    """

    def __init__(
        self,
        file: LeaseFile,
        record: LeaseRecord,
        etag: str,
        sent_at: float,
        conditional: bool,
        taken_from: LeaseRecord | None = None,
    ) -> None:
        self.taken_from = taken_from
        self._file = file
        self._record = record
        self._etag = etag
        self._conditional = conditional
        self._holds_until = sent_at + record.expires

    @property
    def record(self) -> LeaseRecord:
        return self._record

    @property
    def heartbeat(self) -> float:
        """Seconds between two renewals."""
        return self._record.expires / BEATS

    @property
    def expired(self) -> bool:
        """Whether no renewal has reached the store for so long that others may take it."""
        return clock() >= self._holds_until

    def fence(self) -> Fence:
        """What processes that publish for this run must ask."""
        return Fence(self._file.destination, self._file.program, self._record.token)

    def renew(self) -> None:
        """Show that the owner lives. Raises LeaseLost, StoreError if the store did not take it."""
        sent_at = clock()
        self._write(self._record.next())
        self._holds_until = sent_at + self._record.expires

    def release(self) -> None:
        """Let go. Raises LeaseLost if it was lost before, StoreError."""
        self._write(self._record.next(released=True))
        self._holds_until = clock()

    def _write(self, record: LeaseRecord) -> None:
        if self._conditional:
            etag = self._file.replace(record, self._etag)
            if etag is None:
                raise lost(self._file, self._file.look())
        else:
            _require_own(self._file, self._file.look(), self._record.token)
            etag = self._file.overwrite(record)
        self._record, self._etag = record, etag


class Watch:
    """Looks at a lease again and again until it may be taken or its owner is seen to live."""

    def __init__(self, file: LeaseFile) -> None:
        self._file = file
        self._first: Sighting | None = None
        self._since = clock()

    def look(self) -> tuple[Sighting | None, bool]:
        """What is there, and whether it may be taken.

        Raises OwnedElsewhere as soon as its owner has shown a heartbeat, StoreError.
        """
        seen, first = self._file.look(), self._first
        if first is None or seen is None or seen.etag != first.etag:
            if first is not None and seen is not None and _held(first) and _held(seen):
                raise owned(self._file, seen)
            self._first, self._since = seen, clock()
        return seen, seen is None or _is_free(seen, clock() - self._since)


def acquire(
    file: LeaseFile, owner: Owner, expires: float, conditional: bool, pause: Pause
) -> Lease:
    """Take the lease, or find out that a living run has it; that takes up to `expires` seconds.

    `conditional` says that the store honours conditional writes; `pause` waits so many seconds,
    and may raise. Raises OwnedElsewhere, StoreError.
    """
    watch = Watch(file)
    while True:
        seen, free = watch.look()
        if free:
            record = LeaseRecord(uuid.uuid4().hex, owner, expires).next()
            sent_at = clock()
            etag = _written(file, record, seen, conditional)
            if etag is not None:
                died = seen.record if seen is not None and _held(seen) else None
                if died is not None:
                    # What its workers still trust must have run out before the ledger is read.
                    pause(FENCE_SECONDS)
                return Lease(file, record, etag, sent_at, conditional, died)
        pause(_POLL_SECONDS)


def lease_file(destination: S3Location, program: str, expires: float) -> LeaseFile:
    """The lease of a (destination, program); a request to it takes a part of `expires` at most."""
    longest = max(1.0, min(_LONGEST_REQUEST, expires / BEATS))
    return LeaseFile(
        destination, program, new_client(longest, longest, _ATTEMPTS, destination.access)
    )


@dataclass(frozen=True, slots=True)
class Fence:
    """Asks, before something is published, whether the lease still holds; small and picklable."""

    destination: S3Location
    program: str
    token: str

    def check(self) -> None:
        """Raises LeaseLost if the lease is another's or has expired, StoreError.

        It asks the store every FENCE_SECONDS at most.
        """
        if clock() < _trusted.get(self.token, float("-inf")):
            return
        file = LeaseFile(self.destination, self.program, s3_client(self.destination.access))
        seen = self._in_time(file)
        for token in [each for each, until in _trusted.items() if until < clock()]:
            _trusted.pop(token, None)
        _trusted[self.token] = min(_ends(seen), seen.asked_at + FENCE_SECONDS)

    def _in_time(self, file: LeaseFile) -> Sighting:
        """The lease while it holds; the owner is given a moment to renew one that has expired."""
        patience = clock() + FENCE_SECONDS
        while True:
            seen = _require_own(file, file.look(), self.token)
            if clock() < _ends(seen):
                return seen
            if clock() > patience:
                raise LeaseLost(
                    f"the lease {file.uri} has expired: no heartbeat of this run has reached the "
                    "store in time, so another run may be publishing there; nothing more is "
                    "published; run again"
                )
            time.sleep(_POLL_SECONDS)


def owned(file: LeaseFile, seen: Sighting | None) -> OwnedElsewhere:
    """The error that names the living owner."""
    who = "another run" if seen is None else str(seen.record.owner)
    beat = "" if seen is None else f", last heartbeat {seen.record.beaten}"
    return OwnedElsewhere(
        f"program {file.program} at {file.destination} is owned by {who}{beat}: one run at a time "
        "writes there; wait until that run has ended, or cancel it, and run again"
    )


def lost(file: LeaseFile, seen: Sighting | None) -> LeaseLost:
    """The error that names who has the lease now."""
    who = "is gone" if seen is None else f"was taken by {seen.record.owner}"
    return LeaseLost(
        f"the lease {file.uri} {who}, as no heartbeat of this run had reached the store in time; "
        "nothing more is published; see how the other run ends, and run again if sources are left"
    )


def _require_own(file: LeaseFile, seen: Sighting | None, token: str) -> Sighting:
    if seen is None or seen.record.token != token or seen.record.released:
        raise lost(file, seen)
    return seen


def _written(
    file: LeaseFile, record: LeaseRecord, seen: Sighting | None, conditional: bool
) -> str | None:
    if not conditional:
        return file.overwrite(record)
    return file.create(record) if seen is None else file.replace(record, seen.etag)


def _held(seen: Sighting) -> bool:
    return not seen.record.released


def _is_free(seen: Sighting, watched: float) -> bool:
    """`watched` is for how many seconds this process has seen no heartbeat.

    Who lives shows a heartbeat in that time, whatever the clocks of the store are worth.
    """
    if not _held(seen) or seen.record.owner.process.is_dead():
        return True
    expires = seen.record.expires
    old = seen.age is not None and seen.age > expires + _ROUNDING
    return watched > expires or (old and watched > 1.5 * expires / BEATS)


def _ends(seen: Sighting) -> float:
    """Until when, by `clock()`, something may be begun under this lease.

    It leaves a heartbeat's time for what is begun to reach the store.
    """
    age = 0.0 if seen.age is None else seen.age + _ROUNDING
    expires = seen.record.expires
    return seen.asked_at + expires - age - expires / BEATS
