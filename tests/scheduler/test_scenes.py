"""The contract by example: one small scene a rule, in the order of the page.

Pages are the children of a source row, regions those of a page. `give` reports a batch with
values, `fail` with an exception, `lose` takes its worker away (see `scenes.py`).
"""

from __future__ import annotations

from typing import Any

import pytest

from rayorch_prefect.model.events import (
    BatchReported,
    MicrobatchAbandoned,
    ReleaseValues,
)
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.model.reports import ContractBreach, OutputReport, RowsReport
from rayorch_prefect.program import F
from tests.scheduler.scenes import BOOM, ENCRYPTED, SPOILED, Scene, named, pages_read

PRESENT, DROPPED, FAILED, SUPPRESSED = "PRESENT", "DROPPED", "FAILED", "SUPPRESSED"


# -- when an Item settles, and to what -----------------------------------------------------------


def test_1_an_item_settles_when_all_it_depends_on_are_terminal() -> None:
    def join(source: Any) -> Any:
        return F.coalesce(named("Join")(named("A")(source), named("B")(source)), source)

    scene = Scene(join)
    scene.admit()
    scene.give("A", failures={0: ENCRYPTED})
    assert scene.outcomes("Join") == ["PENDING"]
    scene.give("B")
    assert scene.outcomes("Join") == [SUPPRESSED]
    assert scene.outcome() == "COMPLETED"


def test_2_the_first_failed_input_in_declared_order_is_the_cause() -> None:
    def join(source: Any) -> Any:
        return F.coalesce(named("Join")(named("A")(source), named("B")(source)), named("C")(source))

    scene = Scene(join)
    scene.admit()
    scene.give("B", failures={0: SPOILED})
    scene.give("A", failures={0: ENCRYPTED})
    scene.give("C", failures={0: SPOILED})
    assert scene.cause() == ("A", "Encrypted", ())


def test_2_failed_beats_dropped_beats_present() -> None:
    def kept(source: Any) -> Any:
        return F.filter(named("Read")(source), named("Mask")(source))

    scene = Scene(kept)
    scene.admit(3)
    scene.give("Mask", masks=[True, False, False])
    scene.give("Read", failures={2: ENCRYPTED})
    assert [scene.outcome(row) for row in range(3)] == ["COMPLETED", "DROPPED", "FAILED"]


def test_3_a_reduce_waits_for_no_other_parent_and_no_order() -> None:
    scene = Scene(pages_read(batch_size=2, replicas=2))
    scene.admit(2, [2, 2])
    last = scene.sent.pop()
    assert last.ranges == ((0, 2, 4),)
    scene.tell(BatchReported(last.batch, last.worker, scene.report(last)))
    assert (scene.outcome(0), scene.outcome(1)) == ("", "COMPLETED")
    assert scene.output(1) == ("M", (("R", 4, 2),), None, ())


def test_3_by_default_the_lowest_failed_ordinal_is_the_cause() -> None:
    scene = Scene(pages_read())
    scene.admit(1, [3])
    scene.give(failures={2: ENCRYPTED, 1: ENCRYPTED})
    assert scene.cause() == ("Read", "Encrypted", (1,))


def test_3_skip_leaves_a_failed_member_out_and_records_it() -> None:
    scene = Scene(pages_read("skip"))
    scene.admit(1, [3])
    scene.give(failures={1: ENCRYPTED})
    assert scene.output() == ("M", (("R", 3, 1), ("R", 5, 1)), (0, 2), (1,))
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.domain, gap.path, gap.cause.type) == ("page", (1,), "Encrypted")


def test_3_keep_puts_the_failure_in_its_place() -> None:
    scene = Scene(pages_read("keep"))
    scene.admit(1, [2])
    scene.give(failures={1: ENCRYPTED})
    _, (first, second), ordinals, missing = scene.output()
    assert (first, ordinals, missing) == (("R", 2, 1), (0, 1), ())
    assert (second[1].kind, second[1].path) == (Kind.RECORD_FAILURE, (1,))
    assert scene.parents[0, 0].gaps == ()


def test_3_a_failure_whose_scope_is_the_parent_is_not_forgiven() -> None:
    scene = Scene(pages_read("skip"))
    scene.admit(1, [3])
    scene.give(failures={1: SPOILED})
    assert scene.cause() == ("Read", "Spoiled", (1,))


def regions(inner: str, outer: str) -> Any:
    """Two levels: rows are lists of pages, pages lists of regions."""

    def nested(source: Any) -> Any:
        region = F.expand(F.expand(source, domain="page"), domain="region")
        page = F.reduce(named("Read")(region), on_failure=inner)
        return F.reduce(page, on_failure=outer)

    return nested


def test_3_a_barred_group_of_regions_is_one_missing_page() -> None:
    scene = Scene(regions("skip", "skip"))
    scene.admit(1, [(2, 2)])
    scene.give(failures={3: SPOILED})
    assert scene.outcome() == "COMPLETED"
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.domain, gap.path, gap.cause.path) == ("page", (1,), (1, 1))


def test_4_no_members_or_all_dropped_is_an_empty_list() -> None:
    def pages(source: Any) -> Any:
        page = F.expand(source, domain="page")
        return F.reduce(F.filter(page, named("Mask")(page)))

    scene = Scene(pages)
    scene.admit(2, [0, 2])
    scene.give(masks=[False, False])
    assert [scene.output(row)[1] for row in range(2)] == [(), ()]


def test_4_skip_with_no_member_left_is_as_fail() -> None:
    scene = Scene(pages_read("skip"))
    scene.admit(1, [2])
    scene.give(failures={0: ENCRYPTED, 1: ENCRYPTED})
    assert scene.cause() == ("Read", "Encrypted", (0,))


@pytest.mark.parametrize(("limit", "ends"), [(1, "FAILED"), (2, "COMPLETED"), (0.5, "COMPLETED")])
def test_4_more_gaps_than_allowed_are_too_many(limit: float, ends: str) -> None:
    def pages(source: Any) -> Any:
        read = named("Read")(F.expand(source, domain="page"))
        return F.reduce(read, on_failure="skip", max_missing=limit)

    scene = Scene(pages)
    scene.admit(1, [4])
    scene.give(failures={0: ENCRYPTED, 1: ENCRYPTED})
    assert scene.outcome() == ends
    if ends == "FAILED":
        assert scene.cause()[1] == "TooManyGaps"


def test_4_a_share_of_the_members_is_exact() -> None:
    """0.29 * 100 is 28.999999999999996."""

    def pages(source: Any) -> Any:
        read = named("Read", batch_size=100)(F.expand(source, domain="page"))
        return F.reduce(read, on_failure="skip", max_missing=0.29)

    scene = Scene(pages)
    scene.admit(1, [100])
    scene.give(failures=dict.fromkeys(range(29), ENCRYPTED))
    assert len(scene.parents[0, 0].gaps) == 29


@pytest.mark.parametrize("on_failure", ["skip", "keep"])
def test_5_aligned_lists_have_the_same_members(on_failure: str) -> None:
    def pages(source: Any) -> Any:
        page = F.expand(source, domain="page")
        kept = F.filter(page, named("Mask")(page))
        read = named("Read")(page)
        return F.reduce_aligned(page, kept, read, on_failure=on_failure)

    scene = Scene(pages)
    scene.admit(1, [3])
    scene.give("Mask", masks=[True, False, True])
    scene.give("Read", failures={2: ENCRYPTED})
    lists = [part for (part,) in scene.parents[0, 0].outputs]
    assert [part[2] for part in lists] == [(0,) if on_failure == "skip" else (0, 2)] * 3
    assert [part[1][0] for part in lists] == [("R", 0, 1), ("R", 0, 1), ("R", 6, 1)]


def test_6_an_expansion_of_what_is_not_present_makes_no_children() -> None:
    def pages(source: Any) -> Any:
        split = named("Split")(source)
        page = F.expand(F.filter(split, named("Mask")(source)), domain="page")
        return F.reduce(page, on_failure="skip")

    scene = Scene(pages)
    scene.admit(3)
    scene.give("Mask", masks=[True, False, True])
    scene.give("Split", shapes=[2, 2, 0], failures={2: ENCRYPTED})
    assert [scene.outcome(row) for row in range(3)] == ["COMPLETED", "DROPPED", "FAILED"]
    assert [scene.parents[0, row].children for row in range(3)] == [2, 0, 0]


def test_7_outputs_below_the_root_are_judged_as_if_reduced_with_fail() -> None:
    def pages(source: Any) -> Any:
        return named("Read")(F.expand(source, domain="page"))

    scene = Scene(pages)
    scene.admit(3, [1, 2, 0])
    scene.give(failures={2: ENCRYPTED})
    assert [scene.outcome(row) for row in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert scene.output(0) == ("L", (("R", 3, 1),))
    assert scene.output(2) == ("L", ())


def test_8_a_gap_names_only_the_highest_entity() -> None:
    """One output leaves out the page, another only its region."""

    def both(source: Any) -> Any:
        page = F.expand(source, domain="page")
        read = named("Read")(F.expand(page, domain="region"))
        whole, partial = F.reduce(read), F.reduce(read, on_failure="skip")
        return F.reduce(whole, on_failure="skip"), F.reduce(partial, on_failure="skip")

    scene = Scene(both)
    scene.admit(1, [(2, 2)])
    scene.give(failures={3: ENCRYPTED})
    assert [gap.path for gap in scene.parents[0, 0].gaps] == [(1,)]


def test_8_a_gap_is_named_though_nothing_of_the_list_is_left() -> None:
    """What a stage makes of a list with a gap is an empty list, or a mask that is false."""

    def again(source: Any) -> Any:
        read = named("Read")(F.expand(source, domain="page"))
        pages = F.reduce(read, on_failure="skip")
        lines = F.expand(named("Split")(pages), domain="line")
        kept = F.filter(lines, named("Mask")(lines))
        return F.reduce(kept), kept

    scene = Scene(again)
    scene.admit(2, [2, 2])
    scene.give("Read", failures={0: ENCRYPTED, 3: ENCRYPTED})
    scene.give("Split", shapes=[0, 1])
    scene.give("Mask", masks=[False])
    assert [scene.parents[0, row].outputs[1] for row in range(2)] == [(("L", ()),)] * 2
    assert [[gap.path for gap in scene.parents[0, row].gaps] for row in range(2)] == [
        [(0,)],
        [(1,)],
    ]


def test_a_coalesce_takes_the_first_present() -> None:
    def either(source: Any) -> Any:
        return F.coalesce(named("A")(source), named("B")(source))

    scene = Scene(either)
    scene.admit(3)
    scene.give("A", failures={1: ENCRYPTED, 2: ENCRYPTED})
    scene.give("B", failures={2: ENCRYPTED})
    assert scene.output(0) == ("R", 3, 1)
    assert scene.output(1) == ("R", 7, 1)
    assert scene.cause(2)[0] == "A"


# -- failure -------------------------------------------------------------------------------------


def test_f1_a_group_failure_bars_its_siblings_and_nobody_else() -> None:
    scene = Scene(pages_read(batch_size=2, replicas=2))
    scene.admit(2, [6, 1])
    scene.give()
    assert scene.ranges() == [((2, 4),), ((4, 6),)]
    last = scene.sent.pop()
    scene.give(failures={0: SPOILED})
    assert scene.outcomes("Read") == [
        PRESENT,
        PRESENT,
        FAILED,
        SUPPRESSED,
        SUPPRESSED,
        SUPPRESSED,
        "PENDING",
    ]
    assert scene.outcome(0) == "FAILED"
    assert scene.ranges() == [((6, 7),)]
    # In flight its slot stays taken until the batch reports; the rows are dropped and counted.
    before = scene.scheduler.counts.dropped_rows
    assert scene.scheduler.counts.calls[0].in_flight == 3
    report = scene.report(last)
    scene.tell(BatchReported(last.batch, last.worker, report))
    assert scene.scheduler.counts.dropped_rows == before + 2
    assert {report.outputs[0].first_slot, report.outputs[0].first_slot + 1} <= scene.released
    scene.give()
    assert scene.outcome(1) == "COMPLETED"


def test_f1_barred_work_in_the_queue_is_never_sent() -> None:
    scene = Scene(pages_read(batch_size=1))
    scene.admit(2, [3, 1])
    scene.give(failures={0: SPOILED})
    # The one that waits at the worker is skipped there: the worker knows the bar.
    assert scene.ranges() == [((1, 2),), ((3, 4),)]
    assert scene.scheduler.counts.calls[0].ready == 0


def test_f1_in_one_report_bars_come_before_commits() -> None:
    scene = Scene(pages_read())
    scene.admit(1, [3])
    scene.give(failures={2: SPOILED})
    assert scene.outcomes("Read") == [SUPPRESSED, SUPPRESSED, FAILED]


def test_f1_within_one_report_a_bar_beats_a_record_failure() -> None:
    scene = Scene(pages_read())
    scene.admit(1, [2])
    scene.give(failures={0: ENCRYPTED, 1: SPOILED})
    assert scene.cause() == ("Read", "Spoiled", (1,))


def test_f1_at_the_root_a_group_failure_is_a_record_failure() -> None:
    scene = Scene(lambda source: named("Read")(source))
    scene.admit(2)
    scene.give(failures={0: SPOILED})
    assert [scene.outcome(row) for row in range(2)] == ["FAILED", "COMPLETED"]


def test_f1_a_bar_is_for_its_call_parent_and_microbatch_alone() -> None:
    def pages(source: Any) -> Any:
        page = F.expand(source, domain="page")
        spoiled = F.coalesce(F.reduce(named("A")(page)), F.reduce(page))
        return spoiled, F.reduce(named("B")(page))

    scene = Scene(pages)
    scene.admit(2, [1, 1])
    scene.admit(1, [1])
    scene.give("A", failures={0: SPOILED})
    scene.give("B")
    scene.give("A")
    scene.give("B")
    assert scene.outcomes("A") == ["FAILED", PRESENT]
    assert scene.outcomes("B") == [PRESENT, PRESENT]
    assert scene.outcomes("A", 1) == scene.outcomes("B", 1) == [PRESENT]


def test_f2_a_record_failure_is_one_grain_and_never_retried() -> None:
    scene = Scene(pages_read("skip"))
    scene.admit(1, [3])
    scene.give(failures={0: ENCRYPTED})
    assert scene.outcomes("Read") == [FAILED, PRESENT, PRESENT]
    assert not scene.sent


def test_f3_a_batch_that_fails_is_halved_until_the_culprit_stands_alone() -> None:
    scene = Scene(pages_read("skip", batch_size=4, retry_budget=2))
    scene.admit(1, [6])
    tried: list[tuple[tuple[int, int], ...]] = []
    while scene.sent:
        (ranges,) = scene.ranges()
        tried.append(ranges)
        culprit = any(first <= 2 < end for first, end in ranges)
        (scene.fail if culprit else scene.give)()
    assert tried == [
        ((0, 4),),
        ((0, 2),),
        ((2, 4),),
        ((2, 3),),
        ((2, 3),),
        ((3, 4),),
        ((4, 6),),
    ]
    assert scene.outcomes("Read") == [PRESENT, PRESENT, FAILED, PRESENT, PRESENT, PRESENT]
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.cause.kind, gap.cause.type, gap.cause.attempts) == (
        Kind.ATTEMPTS_EXHAUSTED,
        "ValueError",
        2,
    )


def test_f3_a_dead_worker_is_an_attempt_of_its_batch() -> None:
    scene = Scene(pages_read("skip", retry_budget=2))
    scene.admit(1, [2])
    scene.lose()
    assert scene.ranges() == [((0, 1),)]
    scene.lose()
    scene.lose()
    assert scene.outcome() == ""
    scene.give()
    (gap,) = scene.parents[0, 0].gaps
    assert (gap.path, gap.cause.stage, gap.cause.type) == ((0,), "Read", "WorkerDied")


def test_f3_a_preempted_node_charges_no_grain() -> None:
    scene = Scene(pages_read(retry_budget=1))
    scene.admit(1, [2])
    for generation in range(5):
        assert scene.sent[0].generation == generation
        assert scene.ranges() == [((0, 2),)] or scene.ranges() == [((0, 1), (1, 2))]
        scene.lose(charge=False)
    scene.give()
    assert scene.outcome() == "COMPLETED"


def test_f3_in_a_row_wise_stage_an_exception_is_the_rows_own() -> None:
    scene = Scene(pages_read(rowwise=True, retry_budget=2))
    scene.admit(1, [3])
    scene.give(failures={1: BOOM})
    assert scene.outcomes("Read") == [PRESENT, "PENDING", PRESENT]
    assert scene.sent[0].generation == 1
    scene.give(failures={0: BOOM})
    assert scene.cause() == ("Read", "ValueError", (1,))
    assert scene.parents[0, 0].attempts == 2


def test_f5_late_and_repeated_reports_are_dropped_and_counted() -> None:
    scene = Scene(pages_read())
    scene.admit(1, [1])
    lost = scene.lose()
    late = scene.report(lost)
    told = scene.tell(BatchReported(lost.batch, lost.worker, late))
    assert told == [ReleaseValues(late.outputs[0].first_slot, 1)]
    assert scene.outcomes("Read") == ["PENDING"]
    done = scene.give()
    again = scene.report(done)
    told = scene.tell(BatchReported(done.batch, done.worker, again))
    assert told == [ReleaseValues(again.outputs[0].first_slot, 1)]
    assert scene.scheduler.counts.stale_reports == 2


def test_f5_reports_for_a_microbatch_that_has_left_are_dropped() -> None:
    scene = Scene(lambda source: named("Read")(source))
    scene.admit(2)
    scene.tell(MicrobatchAbandoned(0))
    assert scene.released == {0, 1}
    scene.give()
    assert scene.released == {0, 1, 2, 3}
    assert scene.scheduler.counts.dropped_rows == 2
    assert scene.scheduler.counts.calls[0].in_flight == 0


def test_f6_a_broken_contract_fails_every_parent_of_the_batch_and_commits_nothing() -> None:
    scene = Scene(pages_read("skip", batch_size=2))
    scene.admit(3, [2, 2, 1])
    scene.give()
    order = scene.take()
    scene.tell(BatchReported(order.batch, order.worker, ContractBreach("a list", "an int")))
    scene.give()
    assert [scene.outcome(row) for row in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]
    cause = scene.parents[0, 1].cause
    assert cause is not None
    assert (cause.kind, cause.stage) == (Kind.CONTRACT_ERROR, "Read")
    assert cause.message == "expected a list, received an int"


def test_f6_a_coalesce_does_not_tolerate_a_broken_contract() -> None:
    def either(source: Any) -> Any:
        return F.coalesce(named("A")(source), named("B")(source))

    scene = Scene(either)
    scene.admit()
    order = scene.take("A")
    scene.tell(BatchReported(order.batch, order.worker, RowsReport(2, (OutputReport(8, 2),))))
    scene.give("B")
    assert scene.outcome() == "FAILED"
    assert {8, 9} <= scene.released


def test_f6_lists_of_unequal_length_for_one_domain_break_the_contract() -> None:
    def aligned(source: Any) -> Any:
        made = named("Split", outputs=2)(source)
        return F.expand_aligned(*made, domain="page")

    scene = Scene(aligned)
    scene.admit(1)
    order = scene.take()
    report = RowsReport(1, (OutputReport(1, 2, (2,)), OutputReport(3, 1, (1,))))
    scene.tell(BatchReported(order.batch, order.worker, report))
    assert scene.cause()[1] == "ContractError"
    assert {1, 2, 3} <= scene.released
