"""Failure policies: what they read, what they tolerate, at what they stop."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from rayorch_prefect.binding.failure_policies import FailurePolicy, Totals
from rayorch_prefect.binding.states import judge
from rayorch_prefect.binding.tallies import Tally, tally
from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.outcomes import Failure, Kind
from tests.binding.test_states import dropped, failed

UPLOAD = Failure(Kind.UPLOAD_FAILED, "StoreError", "m", "upload", "source")
GROUP = Failure(Kind.GROUP_FAILURE, "Encrypted", "m", "Read", "page")


@pytest.mark.parametrize(
    ("asked", "count", "share", "stops"),
    [
        (3, 3, None, set()),
        ("3", 3, None, set()),
        (" 5 %", 0, Fraction(1, 20), set()),
        ("0.5%", 0, Fraction(1, 200), set()),
        ("fail-fast", 0, None, {"any"}),
        ("stop=uploadfailed", 0, None, {"UploadFailed"}),
        (
            "5%, stop=UploadFailed, stop=Encrypted",
            0,
            Fraction(1, 20),
            {"UploadFailed", "Encrypted"},
        ),
    ],
)
def test_what_is_asked_is_read(
    asked: int | str, count: int, share: Fraction | None, stops: set[str]
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
    ("asked", "meant"),
    [
        ("stop=UploadFailure", "UploadFailed"),
        ("5%, stop=uplaodfailed", "UploadFailed"),
        ("stop=AttemptExhausted", "AttemptsExhausted"),
    ],
)
def test_a_misspelled_kind_is_refused(asked: str, meant: str) -> None:
    with pytest.raises(
        UsageError, match=rf"there is no kind .*\. Did you mean {meant}\? The kinds"
    ):
        FailurePolicy.parse(asked)


@pytest.mark.parametrize("type_", ["CropFailure", "ReadFailure", "StoreError", "DeadlineExceeded"])
def test_a_type_that_resembles_a_kind_is_none(type_: str) -> None:
    assert FailurePolicy.parse(f"stop={type_}").stops == {type_}


@pytest.mark.parametrize(
    ("asked", "types", "told"),
    [
        (
            "stop=encryptd",
            ["NotAPdf", "Encrypted"],
            "there were Encrypted, NotAPdf. Did you mean E",
        ),
        (
            "stop=Locked",
            list("fedcba"),
            "no failure was of type Locked; there were a, b, c, d, e and",
        ),
        ("stop=Encrypted", ["Encrypted", "NotAPdf"], ""),
        ("stop=Encrypted", [], ""),
        ("fail-fast, stop=UploadFailed", ["NotAPdf"], ""),
    ],
)
def test_a_type_that_no_failure_had_is_told(asked: str, types: list[str], told: str) -> None:
    said = FailurePolicy.parse(asked).unmatched(types)
    assert told in said
    assert bool(said) is bool(told)


def test_the_state_says_of_what_a_share_is() -> None:
    counts = Tally(failed=3, skipped=97, by_kind={Kind.GROUP_FAILURE: 3}, by_type={"Encrypted": 3})
    verdict = judge(counts, FailurePolicy.parse("5%"))
    assert not verdict.completed
    assert "tolerated: 5% (of all 100, and of the 3 that this night ran)" in verdict.message


@pytest.mark.parametrize(
    ("asked", "totals", "tolerated"),
    [
        ("2", Totals(10, 2, 10, 2), True),
        ("2", Totals(10, 3, 10, 3), False),
        ("5%", Totals(100, 5, 100, 5), True),
        ("5%", Totals(100, 6, 100, 6), False),
        # As floats 29 % of 100 are less than 29.
        ("29%", Totals(100, 29, 100, 29), True),
        ("29%", Totals(100, 30, 100, 30), False),
        ("0.0001%", Totals(1_000_000, 1, 1_000_000, 1), True),
        ("0%", Totals(0, 0, 0, 0), True),
        ("100%", Totals(3, 3, 3, 3), True),
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


def test_what_was_dropped_before_did_not_run() -> None:
    before = replace(dropped("before"), remembered=True)
    rows = [*[before] * 100, *(failed(f"f{i}", Kind.RECORD_FAILURE) for i in range(10))]
    totals = Totals.of(tally(rows))
    assert totals == Totals(sources=110, failed=10, run=10, failed_now=10)
    assert not FailurePolicy.parse("10%").tolerates(totals)


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
