"""Two ways to read a line: the cheap one where it is sure, the costly one elsewhere.

Runs in this process, so that breakpoints in stages work: python -m examples.fallback
"""

from __future__ import annotations

from typing import Any

from rayorch_prefect import F, RecordFailure, program, run_local, stage

WORDS = {"one": 1, "two": 2, "three": 3}


def lines(text: str) -> list[str]:
    """The lines of a text."""
    return text.splitlines()


def is_plain(line: str) -> bool:
    """Whether the cheap way will do."""
    return line.isdecimal()


def in_words(line: str) -> int:
    """The costly way; a line that it cannot read is left out of its text."""
    if line not in WORDS:
        raise RecordFailure("Unreadable", line)
    return WORDS[line]


def in_digits(line: str) -> int:
    """The cheap way."""
    return int(line)


def total(numbers: Any) -> dict[str, Any]:
    """The sum, and the places of the lines that are missing from it."""
    return {"sum": sum(numbers), "missing": list(numbers.missing)}


@program(version="1")
def fallback(text: Any) -> Any:
    """Sums of texts whose lines are numbers, in digits or in words."""
    line = F.expand(stage(lines)(text), domain="line")
    plain = stage(in_digits)(F.filter(line, stage(is_plain)(line)))
    other = stage(in_words)(F.filter(line, stage(lambda line: not is_plain(line))(line)))
    number = F.coalesce(plain, other)
    return stage(total)(F.reduce(number, on_failure="skip", max_missing=0.5))


TEXTS = ["1\ntwo\n3", "four\n5\n6", "seven\neight\n9", ""]


def main() -> None:
    """Print what became of each text."""
    for parent in run_local(fallback, TEXTS):
        print(parent.key, parent.outcome.value, parent.cause or parent.value())


if __name__ == "__main__":
    main()
