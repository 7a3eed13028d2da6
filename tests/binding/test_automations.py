"""The example automations are made on a real server, and each of them fires."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest
import yaml  # type: ignore[import-untyped]
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.states import Running, Scheduled
from pydantic import SecretStr

from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.flows.nightly import nightly
from tests.binding.conftest import RunNightly
from tests.binding.test_night import ask
from tests.services import Bucket

EXAMPLES = Path(__file__).parents[2] / "examples" / "automations" / "nights.yaml"
# Instead of the sizes of a real installation.
QUICKER = {"threshold": 1}
NOT_DONE_WITHIN = 10
FIRES_WITHIN = 90.0
TEXT = "{{ automation.name }}"


@pytest.fixture
def told() -> Iterator[tuple[str, list[str]]]:
    """The address of a webhook, and what was posted to it."""
    posted: list[str] = []

    class Listening(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Listening)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", posted
    server.shutdown()
    server.server_close()


def examples(block: UUID) -> list[AutomationCore]:
    """As they stand in the file, but quicker and with an action that can be seen."""
    found: list[AutomationCore] = []
    for each in yaml.safe_load(EXAMPLES.read_text())["automations"]:
        if each["trigger"]["posture"] == "Proactive":
            each["trigger"]["within"] = NOT_DONE_WITHIN
        each["trigger"] |= QUICKER
        action = {"type": "call-webhook", "block_document_id": str(block), "payload": TEXT}
        found.append(AutomationCore.model_validate({**each, "actions": [action]}))
    return found


@asynccontextmanager
async def automated(webhook: str) -> AsyncIterator[dict[str, str]]:
    """The names of the automations, by id, while they are there."""
    # Prefect types its calls for synchronous code only.
    save: Any = Webhook(url=SecretStr(webhook)).save
    saved = await save("told", overwrite=True)
    async with get_client() as client:
        made = {str(await client.create_automation(each)): each.name for each in examples(saved)}
        try:
            yield made
        finally:
            for automation in made:
                await client.delete_automation(UUID(automation))


async def late_and_endless_night() -> None:
    """A night whose time has passed and that nobody takes, and one that never ends."""
    async with get_client() as client:
        long_ago = datetime.now(UTC) - timedelta(minutes=5)
        parameters = {"program": "", "source": "", "destination": ""}
        await client.create_flow_run(
            nightly, parameters=parameters, state=Scheduled(scheduled_time=long_ago)
        )
        endless = await client.create_flow_run(nightly, parameters=parameters)
        await client.set_flow_run_state(endless.id, Running(), force=True)


@pytest.mark.slow
async def test_each_of_the_examples_fires(
    bucket: Bucket,
    prefect_server: PrefectServer,
    run_nightly: RunNightly,
    told: tuple[str, list[str]],
) -> None:
    webhook, posted = told
    async with automated(webhook) as made:
        await late_and_endless_night()
        assert (await run_nightly()).state.name == "NoSources"
        bucket.put_sources(a={"n": 1, "fail": "Encrypted"})
        assert (await run_nightly()).state.name == "RecordFailure"

        # The server writes its events down a little after it has acted on them.
        until = asyncio.get_running_loop().time() + FIRES_WITHIN
        fired = triggered(prefect_server)
        while not set(made.values()) <= fired & set(posted):
            assert asyncio.get_running_loop().time() < until, (fired, posted)
            await asyncio.sleep(0.5)
            fired = triggered(prefect_server)
        assert set(posted) == set(made.values())
        assert set(made.values()) <= fired


def triggered(server: PrefectServer) -> set[str]:
    """The names of the automations that have been triggered, by the server's events."""
    body = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}}
    return {each["resource"]["prefect.resource.name"] for each in events(server, body)}


def events(server: PrefectServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    found: Any = ask(server, "/events/filter", body)
    events: list[dict[str, Any]] = found["events"]
    return events
