"""A local Prefect server that does not start says why, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from rayorch_prefect.binding.prefect_server import PrefectServer, ServerNotStarted


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
