"""The numbers on the live display."""

from __future__ import annotations

import pytest

from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.cli.display import Pace


def test_nothing_is_claimed_before_something_was_seen() -> None:
    pace = Pace()
    pace.take(10.0, Tally(skipped=5))
    assert pace.uploads_per_second() is None
    assert pace.seconds_left(open_rows=3, settled=5) is None


def test_skipped_sources_say_nothing_about_the_pace() -> None:
    pace = Pace()
    pace.take(10.0, Tally(skipped=100))
    pace.take(14.0, Tally(skipped=100, published=6, failed=2))
    assert pace.uploads_per_second() == pytest.approx(1.5)
    assert pace.seconds_left(open_rows=20, settled=108) == pytest.approx(10.0)


def test_uploads_a_second_are_those_of_the_last_seconds() -> None:
    pace = Pace()
    for second in range(60):
        pace.take(float(second), Tally(published=10 * min(second, 30)))
    assert pace.uploads_per_second() == 0
    assert pace.seconds_left(open_rows=100, settled=300) == pytest.approx(100 * 59 / 300)


def test_nothing_left_takes_no_time() -> None:
    pace = Pace()
    pace.take(0.0, Tally())
    pace.take(1.0, Tally(published=1))
    assert pace.seconds_left(open_rows=0, settled=1) == 0


def test_a_run_that_is_cut_short_does_not_look_done() -> None:
    counts = Tally(published=2, failed=1, not_processed=7, left_out=4)
    assert (counts.through, counts.total) == (7, 10)
