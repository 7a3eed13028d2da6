"""A local Prefect server as a subprocess, on 127.0.0.1 and a free port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    temporary_settings,
)

from rayorch_prefect.binding import server_child
from rayorch_prefect.errors import RayorchError
from rayorch_prefect.execution import full_disk
from rayorch_prefect.storage.redaction import without_secrets

START_SECONDS = 120.0
STOP_SECONDS = 15.0
DRAIN_SECONDS = 10.0

# The server records about 44 task runs a second as it comes; in batches several times as many.
# Fewer transactions also let more of its requests through: SQLite refuses one that had begun to
# read before another one wrote.
RECORDER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "500",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "2",
}


class ServerNotStarted(RayorchError):
    """The local Prefect server did not answer in time, or ended; the message has its last words."""


class ServerNotReached(RayorchError):
    """The Prefect API that PREFECT_API_URL or the profile names gives no answer."""


def require_answer() -> None:
    """Ask the Prefect API in use for its health. Raises ServerNotReached."""
    with get_client(sync_client=True) as client:
        failed = client.api_healthcheck()
    if failed is not None:
        where = without_secrets(PREFECT_API_URL.value() or "")
        raise ServerNotReached(
            f"no Prefect API answers at {where} ({without_secrets(str(failed))}): check "
            "PREFECT_API_URL, or unset it to use a local server"
        )


class PrefectServer:
    """A server of its own, with its database and log under `home`.

    `home` None keeps Prefect's own home, so that runs stay listed from one start to the next.
    Use it as a context manager, or `start()` and `stop()`. It ends with this process, also where
    this process is killed.
    """

    def __init__(self, home: Path | None = None) -> None:
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api_url(self) -> str:
        return f"{self.address}/api"

    def flow_run_page(self, flow_run_id: str) -> str:
        """The address of a flow run in the UI."""
        return f"{self.address}/v2/runs/flow-run/{flow_run_id}"

    @property
    def log(self) -> Path:
        return self._folder / "rayorch-prefect-server.log"

    @property
    def _folder(self) -> Path:
        default = os.environ.get("PREFECT_HOME") or str(Path.home() / ".prefect")
        return self._home or Path(default)

    def start(self, port: int = 0) -> None:
        """Start and wait until it answers, by default on a free port. Raises ServerNotStarted."""
        self.port = port or free_port()
        try:
            self._launch()
        except OSError as error:
            raise ServerNotStarted(
                f"the local Prefect server could not be started in {self._folder}: "
                f"{full_disk.explained(error)}"
            ) from error
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def _launch(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                # Held open by us alone: the server ends when it is closed, however we end.
                stdin=subprocess.PIPE,
                # Ctrl-C is for the flow: the server must live to record how the run ended.
                start_new_session=True,
            )

    def stop(self) -> None:
        """End the server; a second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _command(self) -> list[str]:
        serve = ["server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        # By its path, and without that path's folder among those of modules.
        return [sys.executable, "-P", server_child.__file__, *serve]

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE")
        }
        home = {"PREFECT_HOME": str(self._home)} if self._home else {}
        # Without the second address the UI calls port 4200, whatever the server's own port is.
        own = {
            "PREFECT_SERVER_UI_API_URL": self.api_url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        return {**RECORDER, **kept, **home, **own}

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(f"{self.api_url}/health"):
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                said = "ended" if ended else f"gave no answer within {START_SECONDS:.0f} s"
                raise ServerNotStarted(
                    f"the local Prefect server {said}; its log {self.log} ends with: "
                    f"{_last_words(self.log)}; set PREFECT_API_URL to use a running server"
                    f"{full_disk.among(self._folder)}"
                )
            time.sleep(0.2)

    def __enter__(self) -> PrefectServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextmanager
def using_api(api_url: str) -> Iterator[None]:
    """Let this process's flows report to `api_url`, without a cloud key or password.

    What is still to be sent is sent before this ends, or dropped after `DRAIN_SECONDS`: a server
    that is stopped after it would let Prefect's background senders try for a minute while the
    process exits.
    """
    settings: dict[Any, Any] = {
        PREFECT_API_URL: api_url,
        PREFECT_API_KEY: None,
        PREFECT_API_AUTH_STRING: None,
    }
    with temporary_settings(updates=settings):
        try:
            yield
        finally:
            for sender in (APILogWorker, EventsWorker):
                _sent_or_dropped(sender)


def _sent_or_dropped(sender: Any) -> None:
    # As the interpreter exits, Prefect waits without a limit for those that are not done.
    under_way = [(each._loop, each._task) for each in tuple(sender._instances.values())]
    _, late = sender.drain_all(timeout=DRAIN_SECONDS, at_exit=False)
    for loop, task in under_way if late else []:
        loop.call_soon_threadsafe(task.cancel)


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(reached: Callable[[], bool], seconds: float, pause: float = 0.25) -> bool:
    """Ask again until `reached` is true; False if it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def _answers(url: str) -> bool:
    try:
        # A proxy of the environment has no way to this machine's own address.
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return " / ".join(line.strip() for line in lines if line.strip())[-600:]
