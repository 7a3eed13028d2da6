"""The simulator against arithmetic: what can be worked out by hand must come out."""

from __future__ import annotations

import pytest

from rayorch_prefect.errors import UsageError
from rayorch_prefect.simulation.chain import Chain, Level, Stage
from rayorch_prefect.simulation.conditions import Conditions
from rayorch_prefect.simulation.load import Load, Page, lognormal, poisoned, scaled
from rayorch_prefect.simulation.simulate import Shape, simulate
from tests.simulation.chains import document, mixed, on_pages


def wall(chain: Chain, load: Load, **conditions: float) -> float:
    under = Conditions(**conditions)  # type: ignore[arg-type]
    return simulate(chain, load, conditions=under).figures.wall_s


@pytest.mark.parametrize(("pages", "calls"), [(1, 1), (48, 1), (49, 2), (1000, 21)])
def test_one_worker_pays_each_call_and_each_row(pages: int, calls: int) -> None:
    chain = on_pages(batch=48, call_s=0.03, row_s=0.005)
    found = simulate(chain, Load((pages,))).figures
    assert found.wall_s == pytest.approx(calls * 0.03 + pages * 0.005)
    (read,) = found.stages
    assert (read.calls, read.rows) == (calls, pages)
    assert read.fill == pytest.approx(pages / (48 * calls))
    assert read.utilisation == pytest.approx(1)


def test_workers_share_full_batches_of_any_documents() -> None:
    chain = on_pages(batch=16, workers=4, call_s=0.1, row_s=0.01)
    assert wall(chain, Load((1,) * 640)) == pytest.approx(10 * (0.1 + 0.16))


def test_the_last_wave_is_as_long_as_a_batch() -> None:
    chain = on_pages(batch=16, workers=4, row_s=0.01)
    assert wall(chain, Load((16 * 9,))) == pytest.approx(3 * 0.16)


def test_one_document_goes_through_the_stages_one_after_another() -> None:
    chain = Chain.of(
        [
            document("render", row_s=0.5, child_s=0.01),
            Stage("read", batch=10, workers=2, call_s=0.2, row_s=0.02),
            document("assemble", row_s=0.3),
            document("upload", call_s=0.1),
        ]
    )
    found = simulate(chain, Load((20,))).figures
    assert found.last_page_s == pytest.approx(0.7 + 0.4)
    assert found.tail_s == pytest.approx(0.4)
    assert found.wall_s == found.first_parent_s == pytest.approx(1.5)


def test_ranges_are_rendered_side_by_side_and_read_as_they_come() -> None:
    stages = [
        Stage("render", Level.RANGE, 1, 4, row_s=0.1, child_s=0.01),
        Stage("read", batch=16, workers=1, row_s=0.01),
    ]
    # 16, 16, 16 and 2 pages: the short range is read while the others are rendered.
    assert wall(Chain.of(stages, 16), Load((50,))) == pytest.approx(0.26 + 0.48)
    assert wall(Chain.of(stages, 50), Load((50,))) == pytest.approx(0.6 + 0.5)


def test_a_global_regroup_keeps_all_documents_until_the_last_page() -> None:
    chain = Chain.of(
        [Stage("read", batch=10, workers=2, row_s=0.01), document("upload", workers=4, row_s=0.5)]
    )
    load = Load((10,) * 40)
    pages = 20 * 0.1
    found = simulate(chain, load, Shape.GLOBAL_REGROUP, regroup_s=3.0).figures
    assert found.last_page_s == pytest.approx(pages)
    assert found.first_parent_s == pytest.approx(pages + 3.5)
    assert found.wall_s == pytest.approx(pages + 3 + 10 * 0.5)
    by_lineage = simulate(chain, load).figures
    assert by_lineage.first_parent_s == pytest.approx(0.1 + 0.5)
    # Two uploaders begin with the first documents, two with the next ones.
    assert by_lineage.wall_s == pytest.approx(0.2 + 10 * 0.5)


def test_a_whole_document_pays_its_own_half_empty_calls() -> None:
    chain = on_pages(batch=10, workers=2, call_s=0.1, row_s=0.01)
    load = Load((12, 12, 3, 3))
    found = simulate(chain, load, Shape.WHOLE_DOCUMENT).figures
    assert found.wall_s == pytest.approx((0.2 + 0.12) + (0.1 + 0.03))
    assert (found.stages[0].calls, found.stages[0].rows) == (6, 30)
    assert found.stages[0].fill == pytest.approx(0.5)


def test_a_worker_with_one_batch_waits_for_driver_and_messages() -> None:
    chain = on_pages(batch=10, row_s=0.01)
    cycle = {"send_s": 0.1, "report_s": 0.2, "driver_batch_s": 0.04, "start_s": 0.01}
    one = wall(chain, Load((50,)), batches_at_worker=1, driver_row_s=0.001, **cycle)
    assert one == pytest.approx(5 * (0.1 + 0.01 + 0.1 + 0.2 + 0.04 + 10 * 0.001))


def test_with_two_it_waits_for_neither() -> None:
    chain = on_pages(batch=10, row_s=0.01)
    cycle = {"send_s": 0.01, "report_s": 0.02, "driver_batch_s": 0.004, "start_s": 0.01}
    assert wall(chain, Load((50,)), **cycle) == pytest.approx(0.01 + 5 * 0.11 + 0.02 + 0.004)


def test_the_driver_sends_one_batch_after_another() -> None:
    chain = on_pages(batch=1, workers=10, row_s=1.0)
    found = wall(chain, Load((10,)), driver_send_s=0.1, send_s=0.02)
    assert found == pytest.approx(10 * 0.1 + 0.02 + 1.0)


def test_a_busy_driver_bounds_the_run() -> None:
    chain = on_pages(batch=1, workers=8, row_s=0.01)
    assert wall(chain, Load((800,)), driver_batch_s=0.01) == pytest.approx(800 * 0.01, rel=0.01)


def test_a_barred_group_is_not_dispatched_and_its_document_fails() -> None:
    chain = on_pages(batch=1, row_s=1.0)
    found = simulate(chain, Load((10, 10), {0: 2}), conditions=Conditions(batches_at_worker=1))
    # Pages 0, 1 and the poisonous 2 of the first document, and all of the second.
    assert found.figures.wall_s == pytest.approx(13)
    assert (found.figures.completed, found.figures.failed) == (1, 1)
    assert found.figures.suppressed == 7
    assert found.figures.suppressed_share == pytest.approx(7 / 9)


def test_rows_of_a_batch_that_waits_are_skipped_at_the_worker() -> None:
    chain = on_pages(batch=4, row_s=1.0)
    # The second batch was sent along with the first, and its worker knows better by then.
    found = simulate(chain, Load((12, 4), {0: 0})).figures
    assert found.wall_s == pytest.approx(8)
    assert found.suppressed == 8


def test_a_row_wise_stage_stops_within_its_batch() -> None:
    load = Load((8, 8), {0: 1})
    at_once = simulate(on_pages(batch=8, row_s=1.0), load).figures
    row_by_row = simulate(on_pages(batch=8, row_s=1.0, rowwise=True), load).figures
    assert (at_once.wall_s, row_by_row.wall_s) == pytest.approx((16, 10))
    assert (at_once.suppressed, row_by_row.suppressed) == (0, 6)


def test_a_bar_that_arrives_stops_a_row_wise_batch_that_runs_elsewhere() -> None:
    load = Load((16, 8, 8), {0: 0})
    chain = on_pages(batch=8, workers=2, row_s=1.0, rowwise=True)
    found = simulate(chain, load, conditions=Conditions(control_s=2.5)).figures
    # One worker learns it after a row of its own; the other is told at 1.0 + 2.5, in its fourth,
    # and goes on to the last document.
    assert found.suppressed == 16 - 1 - 4
    assert found.wall_s == pytest.approx(4 + 8)


def test_a_whole_document_gives_up_at_the_call_with_the_poisonous_page() -> None:
    chain = on_pages(batch=4, call_s=0.5, row_s=1.0)
    found = simulate(chain, Load((12,), {0: 5}), Shape.WHOLE_DOCUMENT).figures
    assert found.stages[0].busy_s == pytest.approx(2 * 4.5)
    assert (found.suppressed, found.failed) == (4, 1)


def test_a_regroup_knows_of_no_sibling() -> None:
    chain = Chain.of([Stage("read", row_s=1.0), document("upload", row_s=1.0)])
    found = simulate(chain, Load((3, 3), {0: 0}), Shape.GLOBAL_REGROUP).figures
    assert (found.suppressed, found.completed, found.failed) == (0, 1, 1)
    assert found.wall_s == pytest.approx(6 + 1)


def test_slices_are_admitted_as_others_end() -> None:
    chain = on_pages(row_s=1.0, workers=10)
    assert wall(chain, Load((1,) * 40, microbatch=5, active=1)) == pytest.approx(8)
    assert wall(chain, Load((1,) * 40, microbatch=5, active=2)) == pytest.approx(4)


def test_rows_that_vary_cost_the_same_in_every_shape_and_are_right_on_average() -> None:
    chain = on_pages(batch=16, workers=3, row_s=0.01, sigma=1.0, tail_share=0.1, tail_factor=11)
    load = Load(lognormal(50, 1, 400, seed=1))
    busy = [simulate(chain, load, shape, seed=3).figures.stages[0].busy_s for shape in Shape]
    assert busy == pytest.approx([busy[0]] * 3)
    assert busy[0] == pytest.approx(load.pages * 0.01 * 2, rel=0.05)
    assert simulate(chain, load, seed=4).figures.stages[0].busy_s != pytest.approx(busy[0])


def test_the_same_seed_gives_the_same_run() -> None:
    chain, load = mixed()
    first, again = (simulate(chain, load, seed=7) for _ in range(2))
    assert first.figures == again.figures
    assert first.record.work == again.record.work
    assert first.record.ended == again.record.ended


def test_a_document_without_pages_goes_through() -> None:
    chain = Chain.of([Stage("read", row_s=1.0), document("upload", row_s=2.0)])
    assert wall(chain, Load((0,))) == pytest.approx(2)
    whole = simulate(chain, Load((0,)), Shape.WHOLE_DOCUMENT)
    assert whole.figures.wall_s == pytest.approx(2)


def test_counts_are_scaled_to_what_is_asked() -> None:
    counts = scaled(lognormal(20, 1.2, 369, seed=2), 17_474, 427)
    assert (len(counts), sum(counts)) == (369, 17_474)
    assert 1 <= min(counts) <= max(counts) <= 427
    with pytest.raises(UsageError, match="cannot have 10 in all"):
        scaled((1.0, 2.0, 3.0), 10, 3)


def test_the_largest_documents_are_poisoned() -> None:
    counts = (5, 40, 3, 40, 90)
    assert poisoned(counts, 2, Page.LAST) == {4: 89, 1: 39}
    assert poisoned(counts, 9, Page.FIRST) == dict.fromkeys((4, 1, 3, 0, 2), 0)
    assert poisoned(counts, 3, Page.RANDOM, 1) == poisoned(counts, 3, Page.RANDOM, 1)


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([], "found none"),
        ([document("upload")], "one page stage at least"),
        ([Stage("a"), document("b"), Stage("c")], "document stages, range stages, page stages"),
        ([Stage("a"), Stage("a")], "a name of its own"),
    ],
)
def test_stages_that_make_no_chain_are_refused(stages: list[Stage], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Chain.of(stages)


def test_a_stage_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="stage read: workers must be at least 1"):
        Stage("read", workers=0)
    with pytest.raises(UsageError, match="stage read: row_s must be at least 0"):
        Stage("read", row_s=-1.0)
    with pytest.raises(UsageError, match="its name must be a word"):
        Stage("re ad")
    with pytest.raises(UsageError, match="pages cannot fail at upload"):
        simulate(Chain.of([Stage("read"), document("upload")]), Load((1,), poisons="upload"))
    with pytest.raises(UsageError, match="no documents"):
        Load(())
