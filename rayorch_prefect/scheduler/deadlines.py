"""What a passed deadline is called."""

from __future__ import annotations

from rayorch_prefect.model.outcomes import DEADLINE_EXCEEDED
from rayorch_prefect.model.reports import AttemptFailed
from rayorch_prefect.program.plan import Pool


def deadline_failure(pool: Pool, rows: int, row: int | None) -> AttemptFailed | None:
    """The attempt that failed at a batch of `rows`, or at one row of it; None if there is no
    such limit or row."""
    if pool.is_concurrent:
        seconds = pool.longest_row_s
        if row is not None or seconds is None:
            return None
        limit = f"its limit of {seconds:g} s a row, and did not answer"
    elif row is not None:
        if pool.row_limit_s is None or not 0 <= row < rows:
            return None
        limit = f"row_limit_s={pool.row_limit_s:g}"
    elif pool.batch_limit_s is not None:
        limit = f"batch_limit_s={pool.batch_limit_s:g}"
    elif pool.row_limit_s is not None:
        limit = f"row_limit_s={pool.row_limit_s:g} for each of {rows} rows"
    else:
        return None
    return AttemptFailed(DEADLINE_EXCEEDED, f"stage {pool.stage} was ended past {limit}")
