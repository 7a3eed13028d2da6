"""Texts of user code, made fit for every place that tells of them."""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST_MESSAGE = 2000
"""Characters of a failure's message that are kept."""

# Longer texts are cut before they are searched for secrets.
MOST_READ = 20_000

# UTF-8 cannot write halves of surrogate pairs (`os.fsdecode` makes them), PostgreSQL refuses NUL,
# and terminals obey the others.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def writable(text: str) -> str:
    """The text with each character that not every place takes written as Python escapes it."""
    return _UNWRITABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def plain_text(text: str, most: int, redact: Callable[[str], str]) -> str:
    """At most `most` characters of it that can be written anywhere, redacted before it is cut.

    A secret that is cut in two would not be known any more.
    """
    return writable(redact(text[:MOST_READ]))[:most]
