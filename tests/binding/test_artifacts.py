"""The failure table's key and lines."""

from __future__ import annotations

import httpx
import pytest
from prefect.logging import disable_run_logger

from rayorch_prefect.binding import artifacts
from rayorch_prefect.binding.artifacts import artifact_key, failure_table, publish_failures
from rayorch_prefect.binding.rows import REMEMBERED_STAGE, Row
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import RowOutcome, Source


def test_keys_are_lower_case_letters_digits_and_dashes() -> None:
    assert artifact_key("failed", "My_Program 2", "microbatch") == "failed-my-program-2-microbatch"


def test_only_failed_rows_have_a_line() -> None:
    source = Source("s3://lake/in/a", "e", 1, "in/a")
    failure = Failure(Kind.GROUP_FAILURE, "Spoilt", "m" * 900, "Work", "child", (2, 5), 3)
    before = Failure(Kind.RECORD_FAILURE, "Old", "stage Work at x: m", REMEMBERED_STAGE, "")
    rows = [
        Row(source, RowOutcome.PUBLISHED),
        Row(source, RowOutcome.FAILED, failure=failure),
        Row(source, RowOutcome.FAILED, failure=before, remembered=True),
    ]
    first, second = failure_table(rows)
    assert first == {
        "source key": "in/a",
        "stage": "Work",
        "child": 2,
        "kind": "GroupFailure",
        "type": "Spoilt",
        "cause": "m" * 500,
        "attempts": 3,
    }
    assert second["stage"] == "(an earlier run)"


async def test_a_table_that_prefect_does_not_take_raises_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def refuse(*, key: str, **_: object) -> None:
        asked.append(key)
        raise httpx.ConnectError("All connection attempts failed")

    monkeypatch.setattr(artifacts, "acreate_table_artifact", refuse)
    failure = Failure(Kind.GROUP_FAILURE, "Spoilt", "m", "Work", "child", (2, 5), 3)
    row = Row(Source("s3://lake/in/a", "e", 1, "in/a"), RowOutcome.FAILED, failure=failure)

    with disable_run_logger():
        await publish_failures([row], "failed-a", "s3://lake/manifest")

    assert asked == ["failed-a"]
