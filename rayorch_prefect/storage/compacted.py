"""Many ledger entries as one Parquet file.

Each row is an entry, with the ETag of the loose object that it was read from: where that object is
still there unchanged, it need not be read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rayorch_prefect.storage.encoding import parquet_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from rayorch_prefect.storage.ledger import LedgerEntry

_FORMAT = b"1"
_MARK = b"rayorch_prefect.ledger"
_NAME = re.compile(r"compacted-(\d{8})-[0-9a-f]{8}\.parquet")


@dataclass(frozen=True, slots=True)
class Held:
    """An entry, and the ETag of the loose object that said so, if there was one."""

    entry: LedgerEntry
    etag: str | None = None


def compacted_name(generation: int, token: str) -> str:
    """A file's name; of two files the one of the higher generation is right."""
    return f"compacted-{generation:08d}-{token[:8]}.parquet"


def generation_of(key: str) -> int | None:
    """The generation of a compacted file, None for another object."""
    found = _NAME.fullmatch(key.rpartition("/")[2])
    return int(found.group(1)) if found else None


def to_parquet(held: Iterable[Held]) -> bytes:
    """One file of these entries."""
    import pyarrow as pa

    rows = [{**asdict(each.entry), "loose_etag": each.etag} for each in held]
    schema = _schema()
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return parquet_bytes(pa.table(columns, schema=schema))


def from_parquet(content: bytes) -> tuple[Sequence[Mapping[str, Any]], Sequence[str | None]]:
    """The entries' fields and, beside them, the ETag of each loose object.

    Raises ValueError for what is no such file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(content))
    if (table.schema.metadata or {}).get(_MARK) != _FORMAT:
        raise ValueError("written by another version of this package, or no file of a ledger")
    if table.schema.names != _schema().names:
        raise ValueError(f"columns {sorted(set(table.schema.names) ^ set(_schema().names))}")
    etags = table.column("loose_etag").to_pylist()
    return table.drop_columns(["loose_etag"]).to_pylist(), etags


def _schema() -> pa.Schema:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    artifact = pa.struct(
        [("key", text), ("uri", text), ("size", number), ("sha256", text), ("etag", text)]
    )
    columns: list[tuple[str, pa.DataType]] = [
        ("uri", text),
        ("etag", text),
        ("fingerprint", text),
        ("outcome", text),
        ("kind", text),
        ("type", text),
        ("cause", text),
        ("artifacts", pa.list_(artifact)),
        ("children", number),
        ("missing", pa.list_(text)),
        ("attempts", number),
        ("finished", text),
        ("version", text),
        ("loose_etag", text),
    ]
    return pa.schema(columns, metadata={_MARK: _FORMAT})
