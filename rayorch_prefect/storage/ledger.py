"""What is finished: one record a parent, kept per destination, program and fingerprint.

`<destination>/_rayorch/<program>/ledger/<fingerprint16>/<hash>.json`, the hash of source URI,
version or ETag, and fingerprint. Entries know nothing of slices: a new file among the sources
changes no name here. Each entry is one flat self-contained row, and only `*.json` objects are
read, so that Parquet files of compacted entries can be added beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hashlib import sha256

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage.client import MAX_CONNECTIONS
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import Artifact, get_object, put_object
from rayorch_prefect.storage.row_outcomes import RowOutcome
from rayorch_prefect.storage.source import Source
from rayorch_prefect.storage.state_folder import state_location

_FORMAT = 1
_RECORDED = (RowOutcome.PUBLISHED, RowOutcome.FAILED, RowOutcome.DROPPED)
# The failures that running again cannot change: the row itself is at fault.
_OF_THE_ROW = (Kind.RECORD_FAILURE, Kind.GROUP_FAILURE)

EntryKey = tuple[str, str]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """How one source row ended: published, failed or dropped.

    `kind`, `type` and `cause` are those of the failure. `children` counts the parent's direct
    children; `missing` holds the gaps as ordinal paths ("1", "3/2"); `finished` is an ISO time
    in UTC. Raises UsageError for another outcome, or a failure without its kind.
    """

    uri: str
    etag: str
    fingerprint: str
    outcome: RowOutcome
    kind: Kind | None = None
    type: str | None = None
    cause: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    children: int = 0
    missing: tuple[str, ...] = ()
    attempts: int = 1
    finished: str = field(default_factory=_now)
    version: str | None = None

    def __post_init__(self) -> None:
        if self.outcome not in _RECORDED:
            raise UsageError(
                f"{self.uri}: the ledger records published, failed and dropped, "
                f"not {self.outcome!r}"
            )
        if (self.outcome is RowOutcome.FAILED) != (self.kind is not None):
            raise UsageError(f"{self.uri}: a failed entry has a kind of failure, others have none")

    @property
    def key(self) -> EntryKey:
        """(source URI, version or ETag): what `Ledger.load` is keyed by."""
        return self.uri, self.version or self.etag

    def runs_again(self, retry_failed: bool) -> bool:
        """Whether planning hands this source to the program once more."""
        if self.outcome is RowOutcome.FAILED:
            return retry_failed or self.kind not in _OF_THE_ROW
        return retry_failed and self.outcome is RowOutcome.PUBLISHED and bool(self.missing)

    def to_json(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LedgerEntry:
        """Raises ValueError, TypeError or KeyError if `content` is no entry of this format."""
        record = json.loads(content)
        if record.pop("format") != _FORMAT:
            raise ValueError("written by another version of this package")
        _check_fields(record)
        record["outcome"] = RowOutcome(record["outcome"])
        record["kind"] = None if record["kind"] is None else Kind(record["kind"])
        record["artifacts"] = tuple(Artifact(**artifact) for artifact in record["artifacts"])
        record["missing"] = tuple(record["missing"])
        return cls(**record)


def _check_fields(record: Mapping[str, object]) -> None:
    expected = {each.name for each in fields(LedgerEntry)}
    if record.keys() != expected:
        raise ValueError(f"fields {sorted(record.keys() ^ expected)} are missing or unknown")


Settled = tuple[Source, LedgerEntry]


@dataclass(frozen=True, slots=True)
class Subtraction:
    """The sources of a run after the ledger: each is in exactly one of the three.

    to_run    never finished, or to be run again
    skipped   published before: row outcome *skipped*
    counted   dropped, or failed for good, before: count again under that outcome without running
    """

    to_run: tuple[Source, ...]
    skipped: tuple[Settled, ...]
    counted: tuple[Settled, ...]


class Ledger:
    """The entries of one destination, program and fingerprint."""

    def __init__(self, destination: S3Location, program: str, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.location = state_location(destination, program, "ledger", fingerprint[:16])

    def record(self, entry: LedgerEntry) -> Artifact:
        """Store `entry`, in place of an earlier one for the same source content.

        Raises UsageError for an entry of another fingerprint, StoreError from the store.
        """
        if entry.fingerprint != self.fingerprint:
            raise UsageError(
                f"{entry.uri}: this ledger keeps fingerprint {self.fingerprint}, "
                f"the entry has {entry.fingerprint}"
            )
        return put_object(self.location, self._name(entry), entry.to_json(), "application/json")

    def load(self) -> dict[EntryKey, LedgerEntry]:
        """All entries, by (source URI, version or ETag).

        Raises StoreError naming the object that is not a readable entry.
        """
        keys = [key for key in list_keys(self.location) if key.endswith(".json")]
        with ThreadPoolExecutor(min(16, MAX_CONNECTIONS), "ledger") as pool:
            entries = list(pool.map(self._read, keys))
        return {entry.key: entry for entry in entries if entry and self._is_ours(entry)}

    def subtract(self, sources: Iterable[Source], retry_failed: bool = False) -> Subtraction:
        """Load the ledger and take from `sources` what needs no run; keeps their order.

        `retry_failed` runs all failed ones again, and those published with gaps. Raises
        StoreError as `load` does.
        """
        return subtract(self.load(), sources, retry_failed)

    def _name(self, entry: LedgerEntry) -> str:
        identity = json.dumps([*entry.key, entry.fingerprint]).encode()
        return f"{self.location.prefix}{sha256(identity).hexdigest()}.json"

    def _read(self, key: str) -> LedgerEntry | None:
        content = get_object(self.location, key)
        if content is None:
            return None  # deleted since the listing: as if it had never been recorded
        try:
            return LedgerEntry.from_json(content)
        except (ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
            raise StoreError(
                f"ledger entry {self.location.uri_of(key)} is not readable: {error}; delete that "
                "object and run again, its source is then computed again"
            ) from error

    def _is_ours(self, entry: LedgerEntry) -> bool:
        # The folder carries sixteen characters of the fingerprint only.
        return entry.fingerprint == self.fingerprint


def subtract(
    entries: Mapping[EntryKey, LedgerEntry], sources: Iterable[Source], retry_failed: bool = False
) -> Subtraction:
    """Take from `sources` what `entries` say needs no run; keeps their order."""
    to_run: list[Source] = []
    skipped: list[Settled] = []
    counted: list[Settled] = []
    for source in sources:
        entry = entries.get((source.uri, source.pin))
        if entry is None or entry.runs_again(retry_failed):
            to_run.append(source)
        elif entry.outcome is RowOutcome.PUBLISHED:
            skipped.append((source, entry))
        else:
            counted.append((source, entry))
    return Subtraction(tuple(to_run), tuple(skipped), tuple(counted))
