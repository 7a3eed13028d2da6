"""H3: a stage that returns another number of results than it got rows spoils the whole batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.handed.conftest import Calls, RunNight, published, whole
from tests.services import Bucket

pytestmark = pytest.mark.handed("H3")

BATCH = "A/0 A/1 A/2 B/0 B/1 B/2"


@pytest.mark.parametrize(
    ("received", "policy", "bystander"),
    [pytest.param(5, 0, False, marks=pytest.mark.slow), (5, 2, True), (7, 0, True)],
)
async def test_wrong_number_of_results(
    bucket: Bucket,
    put: Callable[..., None],
    run_night: RunNight,
    calls: Calls,
    received: int,
    policy: int,
    bystander: bool,
) -> None:
    put(A=3, B=3)
    if bystander:
        put(C=3)

    told = await run_night(f"answering.b6of6as{received}", failure_policy=policy)

    assert told.state == ("FAILED", "ContractError")
    assert told.children == [("FAILED", "ContractError")]
    assert published(bucket) == ({"C": whole("C", 3)} if bystander else {})
    assert calls.lines("batch") == [BATCH, "C/0 C/1 C/2"][: 1 + bystander]
    assert_named(told.message, received)
    assert [(line["source key"], line["kind"]) for line in told.table] == [
        ("in/A.json", "ContractError"),
        ("in/B.json", "ContractError"),
    ]
    for line in told.table:
        assert (line["stage"], line["attempts"]) == ("Whole", 1)
        assert_named(line["stage"] + line["cause"], received)
    assert dict(told.outcomes) == {
        "A": "failed",
        "B": "failed",
        **({"C": "published"} if bystander else {}),
    }


def assert_named(text: str, received: int) -> None:
    assert "Whole" in text
    assert "expected 6" in text
    assert f"received {received}" in text
