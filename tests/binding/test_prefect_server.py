"""A local Prefect server that does not start says why, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rayorch_prefect.binding.prefect_server import PrefectServer, ServerNotStarted, wait_until


def test_a_server_that_ends_at_once_shows_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", "nonsense://nowhere")
    server = PrefectServer(tmp_path)
    with pytest.raises(ServerNotStarted, match=r"its log .* ends with: .*nonsense"):
        server.start()
    server.stop()


def test_a_server_keeps_to_its_home_and_is_gone_after_stop(tmp_path: Path) -> None:
    with PrefectServer(tmp_path) as server:
        assert server.api_url.startswith("http://127.0.0.1:")
        settings = httpx.get(f"{server.address}/ui-settings", trust_env=False).json()
        assert settings["api_url"] == server.api_url
    assert (tmp_path / "prefect.db").exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.api_url}/health", trust_env=False)


STARTER = """
import sys, time
from pathlib import Path
from rayorch_prefect.binding.prefect_server import PrefectServer
server = PrefectServer(Path(sys.argv[1]))
server.start()
print(server.api_url, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_server_ends_with_its_starter_though_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        api_url = starter.stdout.readline().strip()
        httpx.get(f"{api_url}/health", trust_env=False).raise_for_status()
        starter.kill()

    assert wait_until(lambda: not listens(api_url), 30.0)


SENDER = """
import sys
from uuid import uuid4
from prefect.logging.handlers import APILogWorker
from rayorch_prefect.binding import prefect_server
prefect_server.DRAIN_SECONDS = 1.0
with prefect_server.using_api(sys.argv[1]):
    APILogWorker.instance().send({"message": "late", "flow_run_id": str(uuid4())})
print("left", flush=True)
"""


def test_what_a_server_does_not_take_does_not_hold_the_process_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api_url = f"http://127.0.0.1:{silent.getsockname()[1]}/api"
        command = [sys.executable, "-c", SENDER, api_url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sending:
            assert sending.stdout is not None
            assert sending.stdout.readline() == "left\n"
            left_at = time.monotonic()
            try:
                assert sending.wait(40) == 0
            finally:
                sending.kill()
    assert time.monotonic() - left_at < 30


def listens(api_url: str) -> bool:
    try:
        httpx.get(f"{api_url}/health", trust_env=False)
    except httpx.HTTPError:
        return False
    return True
