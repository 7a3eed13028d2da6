"""What is finished: one record a parent, kept per destination, program and fingerprint.

`<destination>/_rayorch/<program>/ledger/<fingerprint16>/<hash>.json`, the hash of source URI,
version or ETag, and fingerprint. Entries know nothing of slices: a new file among the sources
changes no name here. Each entry is one flat self-contained row.

Beside these loose entries lie Parquet files of compacted ones. Reading takes all: a loose entry
goes before a compacted one, a file of a higher generation before another. So compacting may be
broken off anywhere: the new file is stored, then older files and the loose entries that it holds
are deleted, and where they cannot be, they stay in nobody's way.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from rayorch_prefect.errors import StoreError, UsageError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage.answers import explained
from rayorch_prefect.storage.client import MAX_CONNECTIONS, s3_client
from rayorch_prefect.storage.compacted import (
    Held,
    compacted_name,
    from_parquet,
    generation_of,
    to_parquet,
)
from rayorch_prefect.storage.listing import list_sources
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import Artifact, get_object, put_object
from rayorch_prefect.storage.row_outcomes import RowOutcome
from rayorch_prefect.storage.source import Source
from rayorch_prefect.storage.state_folder import state_location

_FORMAT = 1
_RECORDED = (RowOutcome.PUBLISHED, RowOutcome.FAILED, RowOutcome.DROPPED)
# The failures that running again cannot change: the row itself is at fault.
_OF_THE_ROW = (Kind.RECORD_FAILURE, Kind.GROUP_FAILURE)

COMPACT_AT = 1000
"""From how many loose entries on they are compacted."""

_DELETED_AT_ONCE = 200
_READINGS = 3

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

    @property
    def identity(self) -> str:
        """The hash of source URI, version or ETag, and fingerprint, in hex."""
        return sha256(json.dumps([*self.key, self.fingerprint]).encode()).hexdigest()

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
        return cls.from_fields(record)

    @classmethod
    def from_fields(cls, plain: Mapping[str, Any]) -> LedgerEntry:
        """The entry of these plain fields. Raises as `from_json` does."""
        _check_fields(plain)
        record = dict(plain)
        record["outcome"] = RowOutcome(record["outcome"])
        record["kind"] = None if record["kind"] is None else Kind(record["kind"])
        record["artifacts"] = tuple(Artifact(**artifact) for artifact in record["artifacts"])
        record["missing"] = tuple(record["missing"])
        return cls(**record)


def _check_fields(record: Mapping[str, object]) -> None:
    expected = {each.name for each in fields(LedgerEntry)}
    if record.keys() != expected:
        raise ValueError(f"fields {sorted(record.keys() ^ expected)} are missing or unknown")


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """What lies in a ledger's folder.

    `held` is each entry by its key as a loose object; `files` are the keys of compacted files,
    `loose` those of loose entries, of which `unread` stood in no file and were read one by one.
    """

    held: dict[str, Held]
    files: tuple[str, ...]
    loose: tuple[str, ...]
    unread: int

    @property
    def worth_compacting(self) -> bool:
        return self.unread >= COMPACT_AT


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

        Raises StoreError naming the object that is not readable.
        """
        return self.entries_of(self.read())

    def entries_of(self, contents: LedgerContents) -> dict[EntryKey, LedgerEntry]:
        """The entries of this fingerprint: the folder carries sixteen characters of it only."""
        held = (each.entry for each in contents.held.values())
        return {entry.key: entry for entry in held if entry.fingerprint == self.fingerprint}

    def read(self) -> LedgerContents:
        """All that lies in the ledger's folder. Raises StoreError as `load` does."""
        for _ in range(_READINGS):
            contents = self._read_all()
            if contents is not None:
                return contents
        raise StoreError(f"ledger {self.location} changes while it is read: run again")

    def _read_all(self) -> LedgerContents | None:
        """None if something has gone since it was listed: then it is elsewhere, if not deleted."""
        found = {each.key: each.etag for each in list_sources(self.location)}
        files = sorted(key for key in found if generation_of(key) is not None)
        held: dict[str, Held] = {}
        for file in files:
            entries = self._read_compacted(file)
            if entries is None:
                return None
            held |= entries
        loose = {key: etag for key, etag in found.items() if key.endswith(".json")}
        unread = [key for key in loose if key not in held or held[key].etag != loose[key]]
        with ThreadPoolExecutor(min(16, MAX_CONNECTIONS), "ledger") as pool:
            for key, entry in zip(unread, pool.map(self._read, unread), strict=True):
                if entry is None:
                    return None
                held[key] = Held(entry, loose[key])
        return LedgerContents(held, tuple(files), tuple(loose), len(unread))

    def compact(self, contents: LedgerContents, still_owned: Callable[[], None]) -> bool:
        """Store all of `contents` as one file; whether what it holds could be deleted elsewhere.

        Only for the run that owns the ledger, while nothing else of it records; `still_owned`
        raises if it does not any more. Raises StoreError if the file cannot be stored.
        """
        still_owned()
        generation = 1 + max((generation_of(key) or 0 for key in contents.files), default=0)
        name = compacted_name(generation, uuid.uuid4().hex)
        content = to_parquet(contents.held.values())
        key = f"{self.location.prefix}{name}"
        put_object(self.location, key, content, "application/vnd.apache.parquet")
        return self._delete([*contents.files, *contents.loose], still_owned)

    def _delete(self, keys: list[str], still_owned: Callable[[], None]) -> bool:
        def delete(key: str) -> None:
            with explained("remove", self.location.uri_of(key)):
                s3_client(self.location.access).delete_object(Bucket=self.location.bucket, Key=key)

        with ThreadPoolExecutor(min(16, MAX_CONNECTIONS), "ledger") as pool:
            for start in range(0, len(keys), _DELETED_AT_ONCE):
                still_owned()
                try:
                    list(pool.map(delete, keys[start : start + _DELETED_AT_ONCE]))
                except StoreError:
                    return False
        return True

    def subtract(self, sources: Iterable[Source], retry_failed: bool = False) -> Subtraction:
        """Load the ledger and take from `sources` what needs no run; keeps their order.

        `retry_failed` runs all failed ones again, and those published with gaps. Raises
        StoreError as `load` does.
        """
        return subtract(standing(self.load()), sources, retry_failed)

    def _name(self, entry: LedgerEntry) -> str:
        return f"{self.location.prefix}{entry.identity}.json"

    def _read(self, key: str) -> LedgerEntry | None:
        content = get_object(self.location, key)
        if content is None:
            return None
        try:
            return LedgerEntry.from_json(content)
        except (ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
            raise StoreError(
                f"ledger entry {self.location.uri_of(key)} is not readable: {error}; delete that "
                "object and run again, its source is then computed again"
            ) from error

    def _read_compacted(self, key: str) -> dict[str, Held] | None:
        """The entries of one file, by the key that each has as a loose one."""
        content = get_object(self.location, key)
        if content is None:
            return None
        try:
            held = [
                Held(LedgerEntry.from_fields(plain), etag)
                for plain, etag in zip(*from_parquet(content), strict=True)
            ]
        except (ValueError, TypeError, KeyError, AttributeError, OSError, UsageError) as error:
            raise StoreError(
                f"ledger file {self.location.uri_of(key)} is not readable: {error}; delete that "
                "object and run again, the sources in it are then computed again"
            ) from error
        return {self._name(each.entry): each for each in held}


def standing(entries: Mapping[EntryKey, LedgerEntry]) -> dict[EntryKey, LedgerEntry]:
    """Without published entries whose output another version of their source has replaced.

    All versions of a source are published under the same keys: what counts is the last one.
    """
    last: dict[str, LedgerEntry] = {}
    for entry in entries.values():
        known = last.get(entry.uri)
        if entry.outcome is RowOutcome.PUBLISHED and (
            known is None or known.finished < entry.finished
        ):
            last[entry.uri] = entry
    return {
        key: entry
        for key, entry in entries.items()
        if entry.outcome is not RowOutcome.PUBLISHED or last[entry.uri] is entry
    }


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
