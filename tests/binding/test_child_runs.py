"""A microbatch's flow run that the Prefect server does not take at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed

from rayorch_prefect.binding import child_runs
from rayorch_prefect.binding.child_runs import PAUSES, child_state
from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.microbatch import Microbatch
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.storage import read_manifest
from tests.binding.conftest import JOINED, Ended
from tests.binding.test_night import children_of
from tests.services import Bucket, on_moto

REQUEST = httpx.Request("POST", "http://127.0.0.1/api/task_runs/")
BUSY = httpx.HTTPStatusError("busy", request=REQUEST, response=httpx.Response(503))
REFUSED = httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(422))
AWAY = httpx.ConnectError("away")


class Server:
    """Refuses so often; a run that has `begun` has a flow run by then."""

    def __init__(self, *refusals: Exception, begun: bool = False) -> None:
        self.asked = 0
        self.refusals = refusals
        self.begun = begun

    async def run(self, batch: Microbatch) -> State[Any]:
        self.asked += 1
        if self.asked <= len(self.refusals):
            batch.flow_run_id = "a-run" if self.begun else ""
            raise self.refusals[self.asked - 1]
        return Completed()


def a_microbatch() -> Microbatch:
    return Microbatch(cast(Night, None), 0, [])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_runs, "PAUSES", (0.0,) * len(PAUSES))


async def test_it_is_tried_again_while_the_server_is_busy_or_away() -> None:
    server = Server(BUSY, AWAY, BUSY, BUSY)
    assert (await child_state(a_microbatch(), server.run)).is_completed()
    assert server.asked == 5


@pytest.mark.parametrize(
    ("server", "asked"),
    [(Server(*[BUSY] * 9), 5), (Server(REFUSED), 1), (Server(BUSY, begun=True), 1)],
    ids=["busy for ever", "refused", "has begun"],
)
async def test_what_stays_so_is_raised(server: Server, asked: int) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        await child_state(a_microbatch(), server.run)
    assert server.asked == asked


async def test_a_cancelled_night_tries_no_more() -> None:
    batch, server = a_microbatch(), Server(BUSY)
    batch.stop.ask("cancelled")
    with pytest.raises(httpx.HTTPStatusError):
        await child_state(batch, server.run)
    assert server.asked == 1


@on_moto
async def test_an_end_that_the_server_does_not_take_ends_no_night(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, api: Api
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 2} for i in range(4)})
    api.refuses = lambda request: b'"COMPLETED"' in request.content

    ended = await a_night(bucket)

    assert (ended.state.name, ended.state.is_completed()) == ("Completed", True), ended.message
    assert list(ended.outcomes.values()) == ["published"] * 4
    assert api.refused == 1
    children = children_of(prefect_server, ended.night.id)
    assert [child["state_name"] for child in children] == ["Completed"] * 4


@on_moto
async def test_a_run_that_could_not_begin_does_not_stay_pending(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, api: Api
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 2} for i in range(3)})
    begun: list[bytes] = []

    def second_to_begin(request: httpx.Request) -> bool:
        # The night's own run begins before.
        if b'"RUNNING"' in request.content and b"/set_state" in request.url.raw_path:
            begun.append(request.url.raw_path)
        return len(begun) == 2

    api.refuses = second_to_begin
    ended = await a_night(bucket, max_active_microbatches=1)

    assert api.refused == 1
    assert ended.state.is_completed(), ended.message
    states = sorted(child["state_name"] for child in children_of(prefect_server, ended.night.id))
    assert states == ["Cancelled", "Completed", "Completed", "Completed"]


@on_moto
async def test_a_night_accounts_for_sources_whose_run_the_server_never_took(
    bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str, api: Api
) -> None:
    bucket.put_sources(**{f"s{i}": {"n": 2} for i in range(4)})
    api.refuses = lambda request: b'"index":2' in request.content
    api.times = 99

    ended = await a_night(bucket, max_active_microbatches=1)

    assert ended.state.is_failed()
    assert list(ended.outcomes.values()) == ["published"] * 2 + ["not_processed"] * 2
    assert "did not take the flow run of microbatch 2" in ended.message
    rows = read_manifest(ended.night.manifest).column("row_outcome").to_pylist()
    assert sorted(map(str, rows)) == ["not_processed"] * 2 + ["published"] * 2


async def a_night(bucket: Bucket, **settings: Any) -> Ended:
    with watching() as nights:
        places = (bucket.source, bucket.destination)
        more = {"microbatch_size": 1, "upload_workers": 1, **settings}
        state = await flow_state(nightly, JOINED, *places, **more)
    assert [task for task in asyncio.all_tasks() if "take_turns" in repr(task)] == []
    return Ended(state, nights[0])


class Api:
    """Answers 500 to the first `times` POSTs that it `refuses`."""

    def __init__(self) -> None:
        self.refused = 0
        self.times = 1
        self.refuses: Callable[[httpx.Request], bool] = lambda request: False

    def answers(self, request: httpx.Request) -> httpx.Response | None:
        if request.method != "POST" or self.refused >= self.times or not self.refuses(request):
            return None
        self.refused += 1
        return httpx.Response(500, request=request, json={"detail": "no"})


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made, send = Api(), httpx.AsyncClient.send

    async def sent(client: httpx.AsyncClient, request: httpx.Request, **how: Any) -> httpx.Response:
        return made.answers(request) or await send(client, request, **how)

    monkeypatch.setattr(httpx.AsyncClient, "send", sent)
    return made
