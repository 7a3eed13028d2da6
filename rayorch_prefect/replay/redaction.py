"""Keeping credentials out of what people, logs and recordings get to read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

_SECRET_SETTINGS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
# A header that HTTP cannot carry is quoted whole: it may be the token, or the signature.
_HEADER = re.compile(r"Invalid header value.*", re.DOTALL)


# A shorter one would blot out what is not it; no store that asks for a secret takes such.
_SHORTEST_SECRET = 8


def without_secrets(text: str) -> str:
    """`text` with the secret AWS_* settings, what is hidden (of at least 8 characters each) and
    user names in URLs blotted out."""
    text = _HEADER.sub("a request header has a character that HTTP does not allow", text)
    text = _IN_URL.sub("***@", text)
    for name in _SECRET_SETTINGS:
        secret = os.environ.get(name, "").strip()
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    for secret in sorted(_hidden, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


_hidden: set[str] = set()


def hide(secret: str) -> None:
    """From now on this text is a secret of this process, as those of the environment are."""
    if len(secret.strip()) >= _SHORTEST_SECRET:
        _hidden.add(secret.strip())


_SECRET_NAMES = re.compile(r"SECRET|PASSWORD|PASSWD|TOKEN|API_KEY|CREDENTIAL", re.IGNORECASE)


def redaction() -> Callable[[str], str]:
    """What `without_secrets` does, and all settings of this process that are secret by their name.

    The environment is read once.
    """
    secrets = {
        value.strip()
        for name, value in os.environ.items()
        if _SECRET_NAMES.search(name) and len(value.strip()) >= _SHORTEST_SECRET
    }
    longest_first = sorted(secrets, key=len, reverse=True)

    def redacted(text: str) -> str:
        for secret in longest_first:
            text = text.replace(secret, "***")
        return without_secrets(text)

    return redacted
