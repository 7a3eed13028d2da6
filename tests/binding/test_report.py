"""Timeline, summary page and report: bounded, escaped, and true to their numbers."""

from __future__ import annotations

import random
import shlex
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from rayorch_prefect.binding.report import report_html
from rayorch_prefect.binding.stage_watch import Look, StageFigures, StageWatch, figures
from rayorch_prefect.binding.summary_page import (
    Summary,
    command_lines,
    duration,
    summary_markdown,
)
from rayorch_prefect.binding.tallies import Tally
from rayorch_prefect.binding.texts import code_block, shown_texts
from rayorch_prefect.binding.timeline import Timeline
from rayorch_prefect.binding.timeline_picture import (
    FAILED,
    PUBLISHED,
    UPLOADS_BEGUN,
    UPLOADS_ENDED,
    timeline_picture,
)
from rayorch_prefect.execution.metrics import CallMetrics, EngineMetrics
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.simulation.picture import svg

EVIL = "<script src=//x>|`*[a](b)"
WORK = StageFigures("Work", "page", 2, 10, 80, 0.8, 0.5, 3.0, 1)


def counted(cause: str = EVIL) -> Tally:
    by_kind = {Kind.RECORD_FAILURE: 3, Kind.CONTRACT_ERROR: 1}
    return Tally(published=5, failed=4, by_kind=by_kind, by_type={EVIL: 4}, causes=(cause,))


def call(busy_s: float, batches: int, ready: int = 0) -> CallMetrics:
    return CallMetrics(
        "Work", "page", 0, batches, 0.5, ready, 1, 0, 0, 0, busy_s, 1, 8, 2, 0.0, 0.0, 0.0
    )


def metrics(each: CallMetrics) -> EngineMetrics:
    return EngineMetrics((each,), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)


def test_a_timeline_stays_as_long_as_it_was_and_loses_nothing() -> None:
    timeline = Timeline(begun=100.0, width_s=1.0, buckets=8)
    draws = random.Random(1)
    moments = sorted(100 + draws.uniform(0, 1000) for _ in range(5000))

    for at in moments:
        timeline.add("a", at)
        timeline.add("b", at, 2.0)

    assert timeline.width_s == 128.0
    assert len(timeline.series("a")) == timeline.used == 8
    expected = [sum(1 for at in moments if int((at - 100) // 128) == i) for i in range(8)]
    assert timeline.series("a") == expected
    assert sum(timeline.series("b")) == 10_000
    assert timeline.window("a") == (0, 7)
    assert timeline.series("nothing") == [0.0] * 8


def test_a_window_goes_from_first_to_last() -> None:
    timeline = Timeline(0.0, buckets=8)
    timeline.add("a", 2.5, 0.0)
    timeline.add("a", 5.0)
    assert timeline.window("a") == (2, 5)
    timeline.reach(15.0)
    assert (timeline.window("a"), timeline.width_s) == ((1, 2), 2.0)


def test_figures_are_what_happened_between_two_looks() -> None:
    watch = StageWatch(Timeline(0.0))
    first = watch.look(metrics(call(busy_s=4.0, batches=10, ready=6)), at=10.0)
    watch.look(metrics(call(busy_s=5.0, batches=12, ready=20)), at=11.0)
    last = watch.look(metrics(call(busy_s=8.0, batches=16, ready=0)), at=20.0)

    (between,) = figures(first, last)
    (whole,) = figures(Look(0.0), last)

    assert (between.batches, between.rows, between.fill) == (6, 24, 0.5)
    assert (between.busy_share, between.waiting) == (4.0 / 20.0, 10.0)
    assert (whole.rows, whole.busy_share) == (64, 8.0 / 40.0)


def test_the_timeline_has_what_stages_did_where_they_did_it() -> None:
    timeline = Timeline(0.0)
    watch = StageWatch(timeline)
    watch.look(metrics(call(busy_s=0.0, batches=0)), at=10.1)
    watch.look(metrics(call(busy_s=1.0, batches=2)), at=11.1)
    assert timeline.series("busy Work") == [0.0] * 10 + [1.0, 0.0]


def test_the_lane_of_uploads_begins_with_the_first_that_began() -> None:
    timeline = Timeline(0.0, buckets=10)
    timeline.reach(9.0)
    timeline.add(UPLOADS_BEGUN, 2.0)
    timeline.add(UPLOADS_ENDED, 7.0)
    root = ElementTree.fromstring(svg(timeline_picture(timeline, {}, 1)))
    [window, *_] = root.iter("{http://www.w3.org/2000/svg}polygon")
    left, right = (float(p.split(",")[0]) for p in window.attrib["points"].split()[:2])
    assert (left, right) == (170.0 + 770.0 * 0.2, 170.0 + 770.0 * 0.8)


def test_the_summary_says_nothing_in_markdown_that_a_cause_said() -> None:
    text = summary_markdown(
        Summary("p", "RecordFailure", counted(), 3.0, (WORK,), "then", "run `it`", {"m": "s3://b"})
    )

    assert "<script" not in text
    assert "\\|\\`\\*\\[a\\](b)" in text
    assert "Failed by kind: ContractError 1, RecordFailure 3; by type: " in text
    assert "| published | failed | dropped | skipped | not processed |" in text
    assert "- and 3 more" in text
    assert "| Work | page | 2 | 10 | 80 | 80% | 50% | 3 | 1 |" in text
    assert "```\nrun `it`\n```" in text


def test_a_summary_of_what_went_well_has_no_word_of_failures() -> None:
    text = summary_markdown(Summary("p", "Completed", Tally(published=2), 3.0))
    assert "Failed by" not in text
    assert "Next" not in text


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    timeline = Timeline(0.0)
    timeline.add(PUBLISHED, 1.0)
    line = {"source key": EVIL, "stage": EVIL, "child": None, "cause": EVIL}

    page = report_html(
        Summary(EVIL, "Failed", counted(), 3.0, (WORK,), EVIL, EVIL, {EVIL: EVIL}),
        EVIL,
        [line],
        timeline_picture(timeline, {EVIL: 2}, 5),
        [("limit", EVIL)],
        failed_in_all=4,
    )

    tags = _Tags()
    tags.feed(page)
    names = {name for name, _ in tags.seen}
    assert not names & {"script", "link", "img", "iframe", "a", "object", "base", "form"}
    assert not [attrs for _, attrs in tags.seen if {"src", "href", "onload"} & set(attrs)]
    assert tags.text.count(EVIL) >= 10
    assert "and 3 more, in the manifest" in tags.text
    assert "and 3 more\n" in tags.text, "of the first causes"


def test_the_picture_shows_stages_uploads_and_parents_where_they_were() -> None:
    timeline = Timeline(0.0, buckets=10)
    for at in range(10):
        timeline.add("busy Read", at, 1.0 if at < 5 else 0.0)
        timeline.add(UPLOADS_BEGUN, at)
        timeline.add(UPLOADS_ENDED, at)
        timeline.add(PUBLISHED if at < 8 else FAILED, at)

    picture = timeline_picture(timeline, {"Read": 2}, 10)

    root = ElementTree.fromstring(svg(picture))
    areas = [each.attrib["points"] for each in root.iter("{http://www.w3.org/2000/svg}polygon")]
    window, busy, *_, failed, published = [
        [tuple(map(float, point.split(","))) for point in area.split()] for area in areas
    ]
    left, right = 170.0, 940.0
    assert (window[0][0], window[1][0]) == (left, right)
    # Half of two workers were busy, in the first half of the time.
    heights = {busy[0][1] - y for x, y in busy if x < left + (right - left) / 2}
    assert heights == {0.0, 11.0}
    assert max(failed[0][1] - y for _, y in failed) == 120.0
    assert max(published[0][1] - y for _, y in published) == 96.0


def test_texts_are_short_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TEST_TOKEN", "secret-of-a-test")
    shown = shown_texts(20)
    assert shown("a\n secret-of-a-test  b") == "a *** b"
    assert shown("x" * 12 + "secret-of-a-test" + "y" * 30) == "x" * 12 + "***" + "yyyy…"


def test_a_command_stays_the_same_over_several_lines() -> None:
    command = "rayorch-prefect run --source 's3://a/b --c/' --failure-policy 3"
    lines = command_lines(command)
    assert lines.splitlines()[1:] == ["  --source 's3://a/b --c/' \\", "  --failure-policy 3"]
    assert shlex.split(lines.replace("\\\n", "")) == shlex.split(command)
    assert command_lines("this flow") == "this flow"


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert code_block("a ``` b") == "````\na ``` b\n````"


def test_durations_are_for_people() -> None:
    assert [duration(s) for s in (0.26, 119, 150, 8000)] == [
        "0.3 s",
        "119.0 s",
        "2 min",
        "2 h 13 min",
    ]
