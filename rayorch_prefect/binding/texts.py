"""Texts that others wrote, made fit to be shown: short, without secrets, as one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from traceback import format_exc

from rayorch_prefect.execution.plain_text import writable
from rayorch_prefect.replay.redaction import redaction

_MAX_TEXT = 500
_LONGEST_TRACEBACK = 10_000
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]|~#"})


def shown_texts(most: int = _MAX_TEXT) -> Callable[[str], str]:
    """A function that gives a text as one line of at most `most` characters, without secrets.

    The environment's secret settings are read once, now.
    """
    return partial(_one_line, redaction(), most)


def traceback_text() -> str:
    """The traceback of the exception that is being handled, without secrets, and its end if it is
    long: that says what was raised."""
    return writable(redaction()(format_exc()))[-_LONGEST_TRACEBACK:].rstrip()


def markdown(text: str) -> str:
    """One line of plain text for Markdown, with nothing in it that means something there."""
    return escape(" ".join(text.split()), quote=False).translate(_MARKDOWN)


def markdown_table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table of plain texts and numbers."""
    rows = [head, ["---"] * len(head), *([markdown(str(cell)) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def code_block(text: str) -> str:
    """The text as it is, to be copied."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _one_line(redact: Callable[[str], str], most: int, text: str) -> str:
    # A secret that is cut in two would not be known any more.
    line = " ".join(redact(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"
