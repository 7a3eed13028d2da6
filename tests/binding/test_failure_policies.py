"""Failure policies: what they read, what they tolerate, at what they stop."""

from __future__ import annotations

import pytest

from rayorch_prefect.binding.failure_policies import FailurePolicy, Totals
from rayorch_prefect.binding.states import judge
from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.outcomes import Failure, Kind

UPLOAD = Failure(Kind.UPLOAD_FAILED, "StoreError", "m", "upload", "source")
GROUP = Failure(Kind.GROUP_FAILURE, "Encrypted", "m", "Read", "page")


@pytest.mark.parametrize(
    ("asked", "count", "share", "stops"),
    [
        (3, 3, None, set()),
        ("3", 3, None, set()),
        (" 5 %", 0, 0.05, set()),
        ("0.5%", 0, 0.005, set()),
        ("fail-fast", 0, None, {"any"}),
        ("stop=uploadfailed", 0, None, {"UploadFailed"}),
        ("5%, stop=UploadFailed, stop=Encrypted", 0, 0.05, {"UploadFailed", "Encrypted"}),
    ],
)
def test_what_is_asked_is_read(
    asked: int | str, count: int, share: float | None, stops: set[str]
) -> None:
    policy = FailurePolicy.parse(asked)
    assert (policy.count, policy.share, set(policy.stops)) == (count, share, stops)


@pytest.mark.parametrize(
    "asked", [-1, "-1", "", "some", "101%", "3, 5%", "3, 4", "stop=", "stop=a b"]
)
def test_what_cannot_be_read_is_refused(asked: int | str) -> None:
    with pytest.raises(UsageError, match=r'failure_policy is .*expected a number .*"5%"'):
        FailurePolicy.parse(asked)


@pytest.mark.parametrize(
    ("asked", "totals", "tolerated"),
    [
        ("2", Totals(10, 2, 10, 2), True),
        ("2", Totals(10, 3, 10, 3), False),
        ("5%", Totals(100, 5, 100, 5), True),
        ("5%", Totals(100, 6, 100, 6), False),
        # Few new sources that all fail are no good night among many published ones.
        ("5%", Totals(1000, 3, 3, 3), False),
        # What failed before counts among all, not among what ran.
        ("5%", Totals(1000, 42, 100, 2), True),
        ("5%", Totals(1000, 52, 100, 2), False),
    ],
)
def test_tolerance_is_of_the_whole_night(asked: str, totals: Totals, tolerated: bool) -> None:
    assert FailurePolicy.parse(asked).tolerates(totals) is tolerated


def test_the_totals_of_a_night_tell_what_ran() -> None:
    counts = Tally(published=4, failed=3, skipped=10, not_processed=2, left_out=2, remembered=1)
    assert Totals.of(counts) == Totals(sources=19, failed=3, run=6, failed_now=2)


def test_a_part_is_judged_by_its_night() -> None:
    policy = FailurePolicy.parse("3")
    part = Tally(published=3, failed=1, by_kind={Kind.GROUP_FAILURE: 1}, by_type={"Encrypted": 1})
    assert judge(part, policy, night=Totals(40, 3, 40, 3)).completed
    assert judge(part, policy, night=Totals(40, 4, 40, 4)).name == "GroupFailure"
    clean = Tally(published=4)
    assert judge(clean, policy, night=Totals(40, 9, 40, 9)).completed


@pytest.mark.parametrize(
    ("asked", "upload", "group"),
    [
        ("fail-fast", True, True),
        ("9, stop=UploadFailed", True, False),
        ("stop=Encrypted", False, True),
        ("0", False, False),
    ],
)
def test_it_stops_at_a_kind_or_a_type(asked: str, upload: bool, group: bool) -> None:
    policy = FailurePolicy.parse(asked)
    assert (policy.stops_at(UPLOAD), policy.stops_at(GROUP)) == (upload, group)


def test_a_night_that_stopped_at_a_failure_is_named_by_it() -> None:
    counts = Tally(
        published=1,
        failed=1,
        not_processed=3,
        by_kind={Kind.UPLOAD_FAILED: 1},
        by_type={"StoreError": 1},
    )
    assert judge(counts, FailurePolicy.parse("9, stop=UploadFailed")).name == "UploadFailed"
    assert judge(counts, FailurePolicy.parse("9")).name is None
