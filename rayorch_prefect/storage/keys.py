"""The output layout: one injective function of the whole source key and the suffix.

`<destination><escaped source key><suffix>`: `in/report.pdf` becomes
`<destination>in/report.pdf.md`. What an ordinary key is made of stays as it is; the rest is
written with `~`, which never stands for itself:

=================  =============================================================
`~XX`              one byte of UTF-8, in capitals: `+` is `~2B`, `~` is `~7E`
`~_`               an empty segment: `in//lead.json` is `in/~_/lead.json`
`~.`               ends the key before a suffix of several dots: `a~.pages.json`
`~~<64 hex>`       ends a key cut short, with the SHA-256 of the whole source key
=================  =============================================================

Kept: ASCII letters, digits, `-_.,=@()`, spaces inside a segment, and letters, digits and symbols
of other scripts as long as no Unicode normalisation changes them (so a decomposed `café` is
`cafe~CC~81`). The segments `.` and `..`, and a first segment named like the state folder, are
escaped whole or in their first letter.

Why it is injective: `~` introduces every escape, so the escaped key can be read back; a suffix of
one dot starts at the last dot of the result; one of several dots is marked by `~.`; a cut key is
marked by `~~` and carries the hash of the whole key.
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256

from rayorch_prefect.errors import ProgramError, StoreError, UsageError

STATE_FOLDER = "_rayorch"

MAX_KEY_BYTES = 1024
MAX_SUFFIX_BYTES = 64
# Stores that keep objects as files take no longer name between two slashes.
_MAX_SEGMENT_BYTES = 255
_CUT_BYTES = 120
_MAX_DESTINATION_BYTES = MAX_KEY_BYTES - MAX_SUFFIX_BYTES - _CUT_BYTES - len("~~") - 64 - len("~")

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.,=@()")
_SUFFIX = re.compile(r"(\.[A-Za-z0-9_-]+)+")
_JAMO = range(0x1100, 0x1200)


def output_key(destination_prefix: str, source_key: str, suffix: str) -> str:
    """The key of one artifact of one parent; at most 1,024 bytes.

    Raises ProgramError for a suffix that is not allowed, UsageError for a destination prefix
    that leaves no room, StoreError for a source key that UTF-8 cannot write.
    """
    check_suffix(suffix)
    if _size(destination_prefix) > _MAX_DESTINATION_BYTES:
        raise UsageError(
            f"destination prefix {destination_prefix!r} has {_size(destination_prefix)} bytes; "
            f"at most {_MAX_DESTINATION_BYTES} leave room for the output keys"
        )
    escaped = escape_key(source_key)
    if not _fits(destination_prefix, escaped):
        escaped = _cut(source_key)
    mark = "~" if suffix.count(".") > 1 else ""
    return f"{destination_prefix}{escaped}{mark}{suffix}"


def check_suffix(suffix: str) -> None:
    """Raise ProgramError unless `suffix` is like `.json` or `.pages.json`."""
    if not _SUFFIX.fullmatch(suffix) or _size(suffix) > MAX_SUFFIX_BYTES:
        raise ProgramError(
            f"the suffix {suffix!r} of a published output is not allowed; expected a dot, then "
            f"letters, digits, '-' or '_', like '.json', at most {MAX_SUFFIX_BYTES} bytes"
        )


def escape_key(key: str) -> str:
    """The readable, reversible form of a whole key: no empty, `.` or `..` segment."""
    return "/".join(_escape_segments(key))


def escape_segment(text: str) -> str:
    """`text` as exactly one segment of a key: slashes are escaped too."""
    return "".join(_segment_tokens(text))


def _escape_segments(key: str) -> list[str]:
    return ["".join(tokens) for tokens in _tokens_by_segment(key)]


def _tokens_by_segment(key: str) -> list[list[str]]:
    try:
        segments = [_segment_tokens(segment) for segment in key.split("/")]
    except UnicodeEncodeError as error:
        raise StoreError(f"source key {key!r} is not writable as UTF-8: {error}") from error
    if key == STATE_FOLDER or key.startswith(STATE_FOLDER + "/"):
        segments[0][0] = _escape_char(STATE_FOLDER[0])
    return segments


def _segment_tokens(segment: str) -> list[str]:
    if not segment:
        return ["~_"]
    if segment in (".", ".."):
        return [_escape_char(char) for char in segment]
    tokens = [char if _is_kept(char) else _escape_char(char) for char in segment]
    for end in (0, -1):
        if segment[end] == " ":
            tokens[end] = _escape_char(" ")
    return tokens


def _is_kept(char: str) -> bool:
    if char.isascii():
        return char in _PLAIN or char == " "
    category = unicodedata.category(char)
    return (
        (category[0] in "LN" or category == "So")
        and ord(char) not in _JAMO
        and unicodedata.is_normalized("NFKC", char)
    )


def _escape_char(char: str) -> str:
    return "".join(f"~{byte:02X}" for byte in char.encode())


def _fits(destination_prefix: str, escaped: str) -> bool:
    # The longest suffix is reserved, so that all artifacts of a parent are cut, or none.
    room = MAX_SUFFIX_BYTES + len("~")
    *folders, name = escaped.split("/")
    return (
        _size(destination_prefix) + _size(escaped) + room <= MAX_KEY_BYTES
        and _size(name) + room <= _MAX_SEGMENT_BYTES
        and all(_size(folder) <= _MAX_SEGMENT_BYTES for folder in folders)
    )


def _cut(key: str) -> str:
    head: list[str] = []
    left = _CUT_BYTES
    for token in _joined_tokens(key):
        left -= _size(token)
        if left < 0:
            break
        head.append(token)
    return f"{''.join(head)}~~{sha256(key.encode()).hexdigest()}"


def _joined_tokens(key: str) -> list[str]:
    tokens: list[str] = []
    for segment in _tokens_by_segment(key):
        tokens.extend(segment)
        tokens.append("/")
    return tokens[:-1]


def _size(text: str) -> int:
    return len(text.encode())
