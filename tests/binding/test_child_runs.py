"""A microbatch's flow run that the Prefect server does not take at once."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from prefect.client.schemas.objects import State
from prefect.states import Completed

from rayorch_prefect.binding import child_runs
from rayorch_prefect.binding.child_runs import PAUSES, child_state
from rayorch_prefect.binding.microbatch import Microbatch
from rayorch_prefect.binding.night import Night

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
