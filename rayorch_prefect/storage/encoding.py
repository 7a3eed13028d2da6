"""From a published value to named bytes; no store involved."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from rayorch_prefect.errors import ProgramError
from rayorch_prefect.storage.keys import check_suffix

if TYPE_CHECKING:
    import pyarrow as pa

# Suffix, content, content type.
Encoded = tuple[str, bytes, str]

_ALLOWED = (
    "a published output is bytes, str, a JSON-able value, a pyarrow Table, or a mapping all of "
    "whose keys start with a dot, from suffix to any of those"
)
_CONTENT_TYPES = {
    ".csv": "text/csv; charset=utf-8",
    ".gif": "image/gif",
    ".html": "text/html; charset=utf-8",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown; charset=utf-8",
    ".mp4": "video/mp4",
    ".parquet": "application/vnd.apache.parquet",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
    ".xml": "application/xml",
    ".zip": "application/zip",
}


def encode(value: object) -> list[Encoded]:
    """The artifacts of one published output, in the mapping's order; never none.

    bytes become `.bin`, str `.txt` in UTF-8, a Table `.parquet`, all else compact `.json`.
    Raises ProgramError naming the type met and those allowed.
    """
    parts = value if _is_by_suffix(value) else {None: value}
    return [_encode_one(part, suffix) for suffix, part in parts.items()]


def _is_by_suffix(value: object) -> TypeGuard[Mapping[str, object]]:
    # An empty mapping is the JSON value {}: publishing nothing would lose the parent in silence.
    if not isinstance(value, Mapping) or not value:
        return False
    names: list[object] = list(value)
    dotted = [isinstance(name, str) and name.startswith(".") for name in names]
    if any(dotted) and not all(dotted):
        odd = names[dotted.index(False)]
        raise ProgramError(f"{_ALLOWED}; got a mapping with both dotted keys and {odd!r}")
    return all(dotted)


def _encode_one(value: object, suffix: str | None) -> Encoded:
    if suffix is not None:
        check_suffix(suffix)
    default, content = _content(value)
    name = suffix or default
    fallback = _CONTENT_TYPES.get(default, "application/octet-stream")
    return name, content, _CONTENT_TYPES.get("." + name.rpartition(".")[2].lower(), fallback)


def _content(value: object) -> tuple[str, bytes]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ".bin", bytes(value)
    if _is_table(value):
        return ".parquet", parquet_bytes(value)
    if isinstance(value, str):
        return ".txt", _utf8(value)
    return ".json", _utf8(_json(value))


def _is_table(value: object) -> TypeGuard[pa.Table]:
    # A value can only be a Table if someone has imported pyarrow; saves us the import.
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(value, arrow.Table)


def parquet_bytes(table: pa.Table) -> bytes:
    """`table` as one Parquet file, zstd."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramError(f"{_ALLOWED}; got {_type_name(value)}: {error}") from error


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ProgramError(f"{_ALLOWED}; got text that UTF-8 cannot write: {error}") from error


def _type_name(value: object) -> str:
    of = type(value)
    return of.__qualname__ if of.__module__ == "builtins" else f"{of.__module__}.{of.__qualname__}"
