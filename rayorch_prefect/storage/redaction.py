"""Keeping credentials out of what people and logs get to read."""

from __future__ import annotations

import os
import re

_SECRET_SETTINGS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
# A header that HTTP cannot carry is quoted whole: it may be the token, or the signature.
_HEADER = re.compile(r"Invalid header value.*", re.DOTALL)


def without_secrets(text: str) -> str:
    """`text` with the secret AWS_* settings and user names in URLs blotted out."""
    text = _HEADER.sub("a request header has a character that HTTP does not allow", text)
    text = _IN_URL.sub("***@", text)
    for name in _SECRET_SETTINGS:
        secret = os.environ.get(name, "").strip()
        if secret:
            text = text.replace(secret, "***")
    return text


def shown_cause(error: BaseException) -> BaseException | None:
    """`error` to raise from, or None if its own text would show a secret in the traceback."""
    text = str(error)
    return error if without_secrets(text) == text else None
