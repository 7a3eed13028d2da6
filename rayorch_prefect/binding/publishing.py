"""What an uploader actor does with one parent's value; imports no Prefect."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from rayorch_prefect.binding.rows import Row, entry_of_row
from rayorch_prefect.errors import ProgramError
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import Artifact, Ledger, S3Location, publish

STAGE = "publish"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where the outputs and records of one program's runs go; small and picklable."""

    destination: S3Location
    program: str
    fingerprint: str

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.destination, self.program, self.fingerprint)

    def record(self, row: Row) -> None:
        """Put the row into the ledger. Raises StoreError."""
        self.ledger.record(entry_of_row(row, self.fingerprint))


def publish_and_record(value: object, shelf: Shelf, row: Row) -> Row:
    """Store the parent's artifacts, then its ledger entry; the row with the artifacts.

    The entry comes last, so that a rerun trusts it. Raises StoreError, or ProgramError for a
    value that cannot be published.
    """
    published = publish(value, shelf.destination, row.source.key)
    done = as_published(row, published.artifacts)
    shelf.record(done)
    return done


def as_published(row: Row, artifacts: tuple[Artifact, ...]) -> Row:
    """The row with what was stored for it."""
    return replace(row, artifacts=artifacts, finished=time.time())


def upload_failure(
    raised: BaseException, domain: str, attempts: int, stage: str = STAGE
) -> Failure:
    """Why a parent's upload failed for good; a value of the wrong sort is the program's defect."""
    # What an actor raised comes with its traceback as text around the plain error.
    cause = getattr(raised, "cause", None)
    error = cause if isinstance(cause, BaseException) else raised
    of_program = isinstance(error, ProgramError)
    return Failure(
        kind=Kind.CONTRACT_ERROR if of_program else Kind.UPLOAD_FAILED,
        type=type(error).__name__,
        message=str(error),
        stage=stage,
        domain=domain,
        attempts=attempts,
    )
