"""What an uploader actor does with one parent's value; imports no Prefect."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from rayorch_prefect.binding.rows import Row, entry_of_row
from rayorch_prefect.errors import LeaseLost, ProgramError, StoreError
from rayorch_prefect.execution.plain_text import LONGEST_MESSAGE, plain_text
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.replay.redaction import redaction
from rayorch_prefect.storage import (
    PLAIN,
    Artifact,
    Fence,
    Ledger,
    LedgerEntry,
    S3Location,
    Source,
    StoreFeatures,
    Terms,
    find_published,
    publish,
    state_location,
)

STAGE = "publish"

_SKEW = timedelta(hours=1)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the outputs and records of one program's runs go; small and picklable.

    `fence` guards what a run that owns the place writes there; `follows` is since when a run
    that died had owned it, an ISO time, or empty.
    """

    destination: S3Location
    program: str
    fingerprint: str
    fence: Fence | None = None
    follows: str = ""
    terms: Terms = PLAIN

    @property
    def open_uploads(self) -> S3Location:
        """Where uploads in parts are noted while they are open."""
        return state_location(self.destination, self.program, "uploads")

    def by_terms_of(self, features: StoreFeatures, part_bytes: int | None = None) -> Shelf:
        """The same for a store of which this is known. Raises UsageError for a wrong setting."""
        return replace(self, terms=Terms.of(features, self.open_uploads, part_bytes))

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.destination, self.program, self.fingerprint)

    def require_owned(self) -> None:
        """Raises LeaseLost if the run does not own the place any more, StoreError."""
        if self.fence is not None:
            self.fence.check()

    def entries(self) -> Mapping[tuple[str, str], LedgerEntry]:
        """The ledger's entries by (source URI, version or ETag); the owner compacts many of them.

        Raises LeaseLost, StoreError.
        """
        ledger = self.ledger
        contents = ledger.read()
        if self.fence is not None and contents.worth_compacting:
            try:
                deleted = ledger.compact(contents, self.require_owned)
            except StoreError as error:
                logger.warning("the ledger was not compacted: %s", error)
            else:
                left = "" if deleted else "; without the right to delete, they stay beside it"
                logger.info("%d ledger entries are now in one file%s", len(contents.held), left)
        return ledger.entries_of(contents)

    def found(self, sources: Iterable[Source]) -> Mapping[tuple[str, str], LedgerEntry]:
        """What the run that died had published of these sources and not recorded; now it is.

        Nothing where no run died. Raises LeaseLost, StoreError.
        """
        if not self.follows:
            return {}
        since = datetime.fromisoformat(self.follows) - _SKEW
        entries = find_published(self.destination, sources, self.fingerprint, since)
        for entry in entries:
            self.require_owned()
            self.ledger.record(entry)
        if entries:
            logger.info("%d outputs of a run that died are recorded now", len(entries))
        return {entry.key: entry for entry in entries}

    def record(self, row: Row) -> None:
        """Put the row into the ledger. Raises LeaseLost, StoreError."""
        self.require_owned()
        self.ledger.record(entry_of_row(row, self.fingerprint))


def publish_and_record(value: object, shelf: Shelf, row: Row) -> Row:
    """Store the parent's artifacts, then its ledger entry; the row with the artifacts.

    The entry comes last, so that a rerun trusts it. Raises StoreError, LeaseLost, or ProgramError
    for a value that cannot be published.
    """
    shelf.require_owned()
    entry = entry_of_row(row, shelf.fingerprint)
    published = publish(value, shelf.destination, row.source.key, shelf.terms, entry)
    done = as_published(row, published.artifacts)
    shelf.record(done)
    return done


def as_published(row: Row, artifacts: tuple[Artifact, ...]) -> Row:
    """The row with what was stored for it."""
    return replace(row, artifacts=artifacts, finished=time.time())


def plain(raised: BaseException) -> BaseException:
    """What an actor raised, without its traceback as text around it."""
    cause = getattr(raised, "cause", None)
    return cause if isinstance(cause, BaseException) else raised


def is_lost(raised: BaseException) -> bool:
    """Whether an upload was refused because the run does not own the place any more."""
    return isinstance(plain(raised), LeaseLost)


def upload_failure(
    raised: BaseException, domain: str, attempts: int, stage: str = STAGE
) -> Failure:
    """Why a parent's upload failed for good; a value of the wrong sort is the program's defect."""
    error = plain(raised)
    of_program = isinstance(error, ProgramError)
    message = plain_text(str(error), LONGEST_MESSAGE, redaction())
    return Failure(
        kind=Kind.CONTRACT_ERROR if of_program else Kind.UPLOAD_FAILED,
        type=type(error).__name__,
        message=f"{message}; tried {attempts} times" if attempts > 1 else message,
        stage=stage,
        domain=domain,
        attempts=attempts,
    )
