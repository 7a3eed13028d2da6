"""The table of failed parents in the Prefect UI."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from prefect.artifacts import acreate_table_artifact
from prefect.logging import get_run_logger

from rayorch_prefect.binding.rows import REMEMBERED_STAGE, Row

MAX_TABLE_ROWS = 1000
_MAX_TEXT = 500


def artifact_key(*words: str) -> str:
    """The words as a key of lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def failure_table(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One line a failed row: source key, type, cause, where and how often."""
    return [_line(row) for row in rows if row.failure is not None]


async def publish_failures(rows: Iterable[Row], key: str, manifest: str) -> None:
    """Publish the failed rows as a table artifact of the current run; nothing if none failed.

    Where Prefect does not take it, the log says so.
    """
    table = failure_table(rows)
    if not table:
        return
    left_out = len(table) - MAX_TABLE_ROWS
    more = f"; {left_out} more are only in the manifest" if left_out > 0 else ""
    try:
        await acreate_table_artifact(
            table=table[:MAX_TABLE_ROWS],
            key=key,
            description=f"{len(table)} failed{more}. Manifest: {manifest}",
        )
    except Exception as error:
        # The manifest has it all; a server that is away or refuses must not change the outcome.
        get_run_logger().warning("the table of failed sources was not stored: %s", error)


def _line(row: Row) -> dict[str, Any]:
    failure = row.failure
    assert failure is not None
    stage = "(an earlier run)" if failure.stage == REMEMBERED_STAGE else failure.stage
    return {
        "source key": row.source.key,
        "type": failure.type,
        "cause": failure.message[:_MAX_TEXT],
        "stage": stage,
        "child": failure.child,
        "kind": failure.kind.value,
        "attempts": failure.attempts,
    }
