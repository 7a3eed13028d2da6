"""States are a pure function of the counts of row outcomes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
from prefect import flow
from prefect.client.schemas.objects import State, StateType

from rayorch_prefect.binding.failure_policies import FailurePolicy
from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.orders import Order, what_next
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.rows import Row, entry_of_row, left_out, manifest_row, row_of_entry
from rayorch_prefect.binding.states import RowsFailed, judge, to_state
from rayorch_prefect.binding.tallies import Tally, check_total, tally
from rayorch_prefect.cli.main import _parser
from rayorch_prefect.errors import InternalError, UsageError
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import RowOutcome, S3Location, Source


def source(name: str) -> Source:
    return Source(f"s3://lake/in/{name}", f"etag-{name}", 10, f"in/{name}")


def failure(kind: Kind, type: str = "Broken") -> Failure:
    return Failure(kind, type, "it broke", "Read", "page", (3, 1), 2)


def published(name: str, missing: tuple[str, ...] = ()) -> Row:
    return Row(source(name), RowOutcome.PUBLISHED, missing=missing, children=3, attempts=1)


def dropped(name: str) -> Row:
    return Row(source(name), RowOutcome.DROPPED, attempts=1)


def failed(name: str, kind: Kind, type: str = "Broken") -> Row:
    return Row(source(name), RowOutcome.FAILED, failure=failure(kind, type), attempts=2)


def stopped(name: str) -> Row:
    return Row(source(name), RowOutcome.NOT_PROCESSED, reason="EngineError: gone")


def order(**settings: object) -> Order:
    return Order("jobs:pdfs", S3Location("lake", "in/"), S3Location("lake", "out/"), **settings)  # type: ignore[arg-type]


def test_all_published_is_completed() -> None:
    verdict = judge(tally([published("a"), published("b")]))
    assert (verdict.completed, verdict.name) == (True, None)
    assert "2 sources: 2 published, 0 failed, 0 dropped, 0 skipped, 0 not processed" in (
        verdict.message
    )


@pytest.mark.parametrize("first", list(Kind))
def test_failed_is_named_by_the_gravest_kind(first: Kind) -> None:
    later = [kind for kind in Kind if kind.gravity >= first.gravity]
    rows = [failed(kind.value, kind) for kind in reversed(later)]
    verdict = judge(tally([published("a"), *rows]))
    assert (verdict.completed, verdict.name) == (False, first.value)


@pytest.mark.parametrize(
    ("policy", "completed", "name"),
    [
        (0, False, "GroupFailure"),
        (1, False, "GroupFailure"),
        (2, True, "PartiallyCompleted"),
        (3, True, "PartiallyCompleted"),
    ],
)
def test_failure_policy_is_a_count(policy: int, completed: bool, name: str) -> None:
    rows = [failed("x", Kind.RECORD_FAILURE), published("a"), failed("y", Kind.GROUP_FAILURE)]
    verdict = judge(tally(rows), FailurePolicy.parse(policy))
    assert (verdict.completed, verdict.name) == (completed, name)


def test_contract_error_is_never_tolerated() -> None:
    verdict = judge(tally([failed("x", Kind.CONTRACT_ERROR)]), FailurePolicy.parse(100))
    assert (verdict.completed, verdict.name) == (False, "ContractError")


@pytest.mark.parametrize("outcome", [RowOutcome.PUBLISHED, RowOutcome.SKIPPED])
def test_gaps_make_it_partial(outcome: RowOutcome) -> None:
    verdict = judge(tally([published("a"), Row(source("b"), outcome, missing=("1",))]))
    assert (verdict.completed, verdict.name) == (True, "PartiallyCompleted")
    assert "(1 with gaps)" in verdict.message


def test_not_processed_is_failed_whatever_the_policy() -> None:
    counts = tally([published("a"), failed("x", Kind.RECORD_FAILURE), stopped("b")])
    verdict = judge(counts, FailurePolicy.parse(9))
    assert (verdict.completed, verdict.name) == (False, None)
    assert "not processed because: EngineError: gone" in verdict.message


def test_what_a_limit_left_out_is_no_fault_and_excuses_none() -> None:
    rest = left_out(source("b"), 1)
    assert judge(tally([published("a"), rest])).completed
    verdict = judge(tally([failed("a", Kind.RECORD_FAILURE), rest]))
    assert (verdict.completed, verdict.name) == (False, "RecordFailure")


def test_contract_error_names_a_broken_run_too() -> None:
    verdict = judge(tally([failed("x", Kind.CONTRACT_ERROR), stopped("b")]))
    assert verdict.name == "ContractError"


def test_message_tells_counts_causes_and_what_to_run() -> None:
    counts = tally([failed("a.pdf", Kind.GROUP_FAILURE), published("b")])
    message = judge(counts, FailurePolicy(), str(what_next(order(), counts))).message
    assert "1 GroupFailure; tolerated: 0" in message
    assert "in/a.pdf: GroupFailure[Broken] in stage Read at page 3/1: it broke" in message
    command = "rayorch-prefect run --program jobs:pdfs --source s3://lake/in/ --destination s3://lake/out/"
    assert message.endswith(f" {command} --retry-failed"), "no full stop to be pasted with it"


@flow(persist_result=False)
async def of_a_failed_night() -> State[Any]:
    return to_state(judge(tally([failed("a.pdf", Kind.GROUP_FAILURE), published("b")])))


async def test_a_failed_nights_state_raises_where_its_flow_is_awaited(
    prefect_server: PrefectServer,
) -> None:
    with pytest.raises(RowsFailed, match="1 published, 1 failed"):
        await of_a_failed_night()
    state = await flow_state(of_a_failed_night)
    assert (state.is_failed(), state.name) == (True, "GroupFailure")


def test_only_the_first_causes_are_spelt_out() -> None:
    counts = tally(failed(f"{i}.pdf", Kind.RECORD_FAILURE) for i in range(50))
    assert counts.failed == 50
    assert [cause.split(":")[0] for cause in counts.causes] == ["in/0.pdf", "in/1.pdf", "in/2.pdf"]


def test_the_gravest_kind_and_each_type_come_before_more_of_the_same() -> None:
    many = [failed(f"{i}.pdf", Kind.RECORD_FAILURE) for i in range(50)]
    rows = [*many, failed("odd", Kind.RECORD_FAILURE, "Odd"), failed("bug", Kind.CONTRACT_ERROR)]
    causes = [cause.split(":")[0] for cause in tally(rows).causes]
    assert causes == ["in/bug", "in/0.pdf", "in/odd"]


def test_a_long_key_leaves_room_for_the_cause() -> None:
    [cause] = tally([failed("k" * 1000 + "/end.pdf", Kind.GROUP_FAILURE)]).causes
    assert cause.startswith("…k")
    assert "k/end.pdf: GroupFailure[Broken] in stage Read at page 3/1: it broke" in cause


def test_only_the_first_reasons_are_spelt_out() -> None:
    rows = [replace(stopped(str(i)), reason=f"microbatch {i}: {'x' * 9000}") for i in range(500)]
    message = judge(tally(rows)).message
    assert "microbatch 2: x" in message
    assert "microbatch 3: x" not in message
    assert "497 more reasons, in the manifest" in message
    assert len(message) < 8000


def test_failed_state_carries_an_exception() -> None:
    state = to_state(judge(tally([failed("a", Kind.RECORD_FAILURE)])))
    assert (state.type, state.name) == (StateType.FAILED, "RecordFailure")
    with pytest.raises(RowsFailed, match="1 failed"):
        state.result()


def test_completed_states_keep_their_names() -> None:
    assert to_state(judge(tally([published("a")]))).name == "Completed"
    partial = to_state(judge(tally([published("a", ("2",))])))
    assert (partial.type, partial.name) == (StateType.COMPLETED, "PartiallyCompleted")


def test_nothing_next_when_all_is_published() -> None:
    assert str(what_next(order(), tally([published("a")]))) == ""


def test_next_after_a_broken_run_needs_no_retry_failed() -> None:
    assert "--retry-failed" not in str(what_next(order(), tally([stopped("a")])))


def test_next_after_a_stage_that_cannot_start_is_to_mend_it() -> None:
    row = replace(stopped("a"), reason="StageStartError: stage Read: no weights")
    assert str(what_next(order(), tally([row]))).startswith("mend the stage")


def test_next_after_a_night_that_its_policy_stopped_is_to_see_to_why() -> None:
    row = replace(stopped("a"), reason="StoppedAtFailure: in/b failed as UploadFailed")
    assert str(what_next(order(), tally([row]))).startswith("see to what stopped the night")


def test_next_after_an_own_upload_task_failed_does_not_blame_the_store() -> None:
    counts = tally([failed("a", Kind.UPLOAD_FAILED)])
    assert str(what_next(order(), counts)).startswith("look at the store")
    own = order(upload_task="my_jobs:deliver")
    assert str(what_next(own, counts)).startswith("look at what my_jobs:deliver stores to")


def test_next_repeats_hooks_that_have_names() -> None:
    counts = tally([stopped("a")])
    paged = order(hooks={"on_parent_failed": "my_jobs.pager:page", "on_microbatch_end": "m:f"})
    assert str(what_next(paged, counts)).endswith(
        " --hook on_parent_failed=my_jobs.pager:page --hook on_microbatch_end=m:f"
    )
    # A command could not say which function it was.
    by_function = order(hooks={"on_parent_failed": print})
    assert what_next(by_function, counts).command == "this flow"


def test_next_quotes_for_the_shell() -> None:
    spaced = Order("jobs:pdfs", S3Location("lake", "in put/"), S3Location("lake", "out/"))
    assert "--source 's3://lake/in put/'" in str(what_next(spaced, tally([stopped("a")])))


def test_next_says_keys_that_look_like_options_so_that_they_are_read_as_keys() -> None:
    command = what_next(order(only=("-a.pdf", "b.pdf")), tally([stopped("-a.pdf")])).command
    _, *words = shlex.split(command)
    assert _parser()[0].parse_args(words).only == ["-a.pdf", "b.pdf"]


def test_next_does_not_spell_out_thousands_of_keys() -> None:
    keys = tuple(f"in/{i}.pdf" for i in range(5000))
    assert what_next(order(only=keys), tally([stopped("a")])).command == "this flow"


def test_next_repeats_what_was_set_and_nothing_else() -> None:
    asked = replace(order(), upload_group=8, policy="canary", only=("in/a b",), limit=3, force=True)
    command = str(what_next(asked, tally([stopped("a")])))
    told = "--destination s3://lake/out/ --upload-group 8 --policy canary --only 'in/a b'"
    assert command.endswith(told), command


def test_a_kind_that_says_it_all_is_not_said_twice() -> None:
    (cause,) = tally([failed("a", Kind.CONTRACT_ERROR, type="ContractError")]).causes
    assert cause.startswith("in/a: ContractError in stage Read")


def test_counts_must_add_up() -> None:
    check_total(Tally(published=2, failed=1), 3, "night n")
    with pytest.raises(InternalError, match="add up to 3, the sources to 4"):
        check_total(Tally(published=2, failed=1), 4, "night n")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("microbatch_size", 0),
        ("max_active_microbatches", 0),
        ("upload_workers", -1),
        ("failure_policy", -1),
        ("policy", "newest"),
    ],
)
def test_order_refuses_wrong_numbers(setting: str, value: int) -> None:
    with pytest.raises(UsageError, match=setting):
        order(**{setting: value})


def test_order_refuses_a_destination_inside_the_source() -> None:
    with pytest.raises(UsageError, match="outside the source prefix"):
        Order("jobs:pdfs", S3Location("lake", "in/"), S3Location("lake", "in/out/"))


def test_the_ledger_gives_a_failure_back() -> None:
    row = failed("a", Kind.RECORD_FAILURE, "Encrypted")
    again = row_of_entry(row.source, entry_of_row(row, "f" * 64))
    assert (again.outcome, again.remembered) == (RowOutcome.FAILED, True)
    assert again.failure is not None
    assert (again.failure.kind, again.failure.type) == (Kind.RECORD_FAILURE, "Encrypted")
    assert again.cause == "RecordFailure[Encrypted] before: stage Read at page 3/1: it broke"


def test_the_ledger_turns_published_into_skipped_and_keeps_its_gaps() -> None:
    row = published("a", ("1", "3/2"))
    again = row_of_entry(row.source, entry_of_row(row, "f" * 64))
    assert (again.outcome, again.missing) == (RowOutcome.SKIPPED, ("1", "3/2"))


def test_manifest_row_shows_the_failure() -> None:
    row = manifest_row(failed("a", Kind.UPLOAD_FAILED, "StoreError"))
    assert (row.row_outcome, row.kind, row.type) == (
        RowOutcome.FAILED,
        "UploadFailed",
        "StoreError",
    )
    assert row.cause == "UploadFailed[StoreError] in stage Read at page 3/1: it broke"
