"""Keeping credentials out of errors that are raised from others."""

from __future__ import annotations

from rayorch_prefect.replay.redaction import hide, without_secrets

__all__ = ["hide", "shown_cause", "without_secrets"]


def shown_cause(error: BaseException) -> BaseException | None:
    """`error` to raise from, or None if its own text would show a secret in the traceback."""
    text = str(error)
    return error if without_secrets(text) == text else None
