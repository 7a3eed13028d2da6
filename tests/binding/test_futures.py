"""Task runs in threads share a client of Prefect's API."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client

from rayorch_prefect.binding.futures import final_states, one_client, threads
from rayorch_prefect.binding.prefect_server import PrefectServer

RUNS = 3


@task(persist_result=False)
def own_client() -> Any:
    """What Prefect's own code would talk to the server with inside this task run."""
    return get_client(sync_client=True)


@pytest.mark.parametrize(("shared", "clients"), [(True, 1), (False, RUNS)])
async def test_task_runs_share_a_client(
    prefect_server: PrefectServer, shared: bool, clients: int
) -> None:
    seen: list[Any] = []

    @flow(task_runner=threads(2), persist_result=False)
    async def uploading() -> None:
        with one_client() if shared else nullcontext():
            futures = [own_client.submit() for _ in range(RUNS)]
            states = await final_states(futures)
        seen.extend([await state.aresult() for state in states])

    await uploading()

    assert len({id(client) for client in seen}) == clients
