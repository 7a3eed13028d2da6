"""Events and hooks tell of ends beside the night, and none of what they do reaches it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.logging import disable_run_logger

from rayorch_prefect.binding import events
from rayorch_prefect.binding.events import Events
from rayorch_prefect.binding.hooks import Hooks, loaded_hooks
from rayorch_prefect.binding.listeners import End, Listener, MicrobatchEnd, ParentEnd
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.outcomes import Kind
from rayorch_prefect.storage import RowOutcome
from tests.binding.conftest import RunNightly
from tests.binding.test_night import ask
from tests.services import Bucket

AUTOMATIONS = Path(__file__).parents[2] / "examples/automations/nights.yaml"

told: list[End] = []


def tell(end: End) -> None:
    """A hook for nights that are given it by name."""
    told.append(end)
    if isinstance(end, ParentEnd) and end.kind:
        raise ValueError("the pager is away")


async def tell_later(end: End) -> None:
    await asyncio.sleep(0)
    told.append(end)


def published(key: str) -> ParentEnd:
    return ParentEnd("p", "s3://b/out/", key, f"s3://b/{key}", RowOutcome.PUBLISHED)


def failed(key: str) -> ParentEnd:
    return ParentEnd(
        "p", "s3://b/out/", key, f"s3://b/{key}", RowOutcome.FAILED, (), (), "RecordFailure", "Odd"
    )


def events_of(server: PrefectServer, names: list[str], destination: str) -> list[dict[str, Any]]:
    resource = {"labels": {"rayorch.destination": [destination]}}
    body = {"filter": {"event": {"name": names}, "resource": resource, "order": "ASC"}}
    return list(ask(server, "/events/filter", body)["events"])


async def test_ends_are_told_as_events_and_to_hooks_that_change_nothing(
    bucket: Bucket, prefect_server: PrefectServer, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 3}, b={"fail": "Encrypted"}, c={"n": 1}, d={"n": 1})
    told.clear()
    hook = f"{__name__}:tell"

    ended = await run_nightly(
        parent_events=2,
        failure_policy="25%",
        hooks={
            "on_parent_published": f"{__name__}:tell_later",
            "on_parent_failed": hook,
            "on_microbatch_end": hook,
        },
    )

    assert ended.state.name == "PartiallyCompleted"
    ends = {end.key: end for end in told if isinstance(end, ParentEnd)}
    assert sorted(ends) == [f"in/{name}.json" for name in "abcd"]
    assert ends["in/b.json"].type == "Encrypted"
    assert f"{bucket.destination}in/a.json.txt" in ends["in/a.json"].outputs
    (batch,) = (end for end in told if isinstance(end, MicrobatchEnd))
    assert (batch.state, batch.counts["published"]) == ("PartiallyCompleted", 3)
    names = ["rayorch.parent.published", "rayorch.parent.failed", "rayorch.microbatch.completed"]
    found = await some_events(prefect_server, names, bucket.destination, 4)
    by_name = {name: [each for each in found if each["event"] == name] for name in names}
    assert [len(by_name[name]) for name in names] == [2, 1, 1]
    (failure,), (end,) = by_name[names[1]], by_name[names[2]]
    assert failure["resource"]["rayorch.source-key"] == "in/b.json"
    assert failure["resource"]["rayorch.type"] == "Encrypted"
    assert failure["payload"]["cause"] == "asked for"
    related = {each["prefect.resource.id"] for each in failure["related"]}
    assert {"rayorch.program.joined", f"prefect.flow-run.{ended.night.id}"} <= related
    assert end["payload"]["sources"]["failed"] == 1
    assert end["payload"]["parent_events_left_out"] == 1


async def some_events(
    server: PrefectServer, names: list[str], destination: str, count: int
) -> list[dict[str, Any]]:
    """Those with these names, once there are so many: the server stores them when it can."""
    until = time.monotonic() + 60
    while len(found := events_of(server, names, destination)) < count:
        assert time.monotonic() < until, found
        await asyncio.sleep(0.2)
    return found


@pytest.mark.slow
async def test_the_first_failure_can_stop_the_night(
    bucket: Bucket, run_nightly: RunNightly
) -> None:
    bucket.put_sources(a={"n": 1}, b={"fail": "Encrypted"}, c={"n": 1}, d={"n": 1})

    ended = await run_nightly(
        failure_policy="9, stop=Encrypted", microbatch_size=1, max_active_microbatches=1
    )

    assert ended.state.name == "RecordFailure"
    assert list(ended.outcomes.values()) == [
        "published",
        "failed",
        "not_processed",
        "not_processed",
    ]
    assert "StoppedAtFailure: in/b.json failed as RecordFailure[Encrypted]" in ended.message


async def test_every_example_automation_is_taken_by_the_server(
    prefect_server: PrefectServer,
) -> None:
    given = yaml.safe_load(AUTOMATIONS.read_text())["automations"]
    async with get_client() as client:
        made = [await client.create_automation(AutomationCore(**each)) for each in given]
        try:
            stored = [await client.read_automation(each) for each in made]
        finally:
            for each in made:
                await client.delete_automation(each)
    assert [each.name for each in stored if each] == [each["name"] for each in given]
    # A kind of failure that no automation expects would go unseen.
    expected = set(given[0]["trigger"]["expect"])
    assert {f"prefect.flow-run.{kind.value}" for kind in Kind} <= expected
    assert expected <= set(given[3]["trigger"]["expect"])


def test_events_of_parents_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(events, "emit_event", lambda name, *_, **__: sent.append(name))
    some = Events(most=2)

    for i in range(5):
        some.tell(published(str(i)))
        some.tell(failed(str(i)))

    assert sorted(sent) == ["rayorch.parent.failed"] * 2 + ["rayorch.parent.published"] * 2
    assert some.left_out == 6


def test_events_that_prefect_does_not_take_raise_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("no")

    monkeypatch.setattr(events, "emit_event", refuse)
    with disable_run_logger():
        Events(most=2).tell(published("a"))


async def test_a_listener_that_hangs_holds_up_nobody() -> None:
    hang, seen = threading.Event(), list[str]()

    def slow(end: End) -> None:
        assert isinstance(end, ParentEnd)
        seen.append(end.key)
        hang.wait(30)

    listener = Listener(slow)
    for i in range(3):
        listener.add(published(str(i)))

    assert await listener.closed(0.2) == 3
    assert seen == ["0"]
    hang.set()


async def test_a_listener_tells_of_all_in_their_order() -> None:
    seen: list[End] = []
    listener = Listener(seen.append)
    ends = [published(str(i)) for i in range(100)]
    for end in ends:
        listener.add(end)
    assert await listener.closed(30) == 0
    assert seen == ends


def test_a_hook_gets_its_own_ends_only() -> None:
    seen: list[End] = []
    hooks = Hooks({"on_parent_failed": seen.append})
    for end in (published("a"), failed("b")):
        hooks.tell(end)
    assert seen == [failed("b")]


def leave(end: End) -> None:
    raise SystemExit("the pager is away")


def give_up(end: End) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("hook", [leave, give_up])
async def test_a_hook_that_wants_to_end_the_process_is_called_again(hook: Any) -> None:
    with disable_run_logger():
        hooks = Hooks({"on_parent_failed": hook})
        listener = Listener(hooks.tell)
        for key in "abc":
            listener.add(failed(key))
        assert await listener.closed(10) == 0
    assert hooks.failed == 3


def test_what_a_hook_raised_is_logged_without_secrets(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PAGER_TOKEN", "pager-secret-1234")
    monkeypatch.setattr("rayorch_prefect.binding.hooks.get_run_logger", logging.getLogger)

    def page(end: End) -> None:
        raise ConnectionError("https://pager/pager-secret-1234/send")

    Hooks({"on_parent_failed": page}).tell(failed("a"))
    [record] = caplog.records
    assert "https://pager/***/send" in record.getMessage()
    assert "pager-secret" not in caplog.text


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"on_night": print}, "hook 'on_night': expected one of on_parent_published"),
        ({"on_parent_failed": "no.such:x"}, "module no.such does not import"),
        ({"on_parent_failed": f"{__name__}:nothing"}, "has no attribute nothing"),
        ({"on_parent_failed": "pager"}, "expected module:attribute"),
        ({"on_parent_failed": 3}, "is a int; expected a function"),
        ({"on_parent_failed": lambda: None}, "is called with one argument"),
    ],
)
def test_a_hook_that_will_not_do_is_refused(hooks: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        loaded_hooks(hooks, None)
