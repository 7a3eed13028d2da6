"""Two real S3 servers for tests, on 127.0.0.1 and a free port: moto and `rclone serve s3`.

They differ where S3 stores do. A conftest that wants its tests run on both imports the fixture:
`from tests.stores import s3_store`. A test that is about one of them says so:
`@pytest.mark.parametrize("s3_store", ["rclone"], indirect=True)`.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

STORES = ("moto", "rclone")
ACCESS_KEY = "testing"
SECRET_KEY = "testing-secret"
_START_SECONDS = 30.0
_STOP_SECONDS = 10.0
_LOG_MARK = "Starting s3 server on ["
_OF_THE_USER = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_REGION")


@dataclass(frozen=True, slots=True)
class Store:
    """A running S3 server."""

    name: str
    endpoint: str

    @property
    def keeps_files(self) -> bool:
        """Objects are files of a disk: no empty segments, no folder markers, no versions."""
        return self.name == "rclone"

    @property
    def environment(self) -> dict[str, str]:
        """AWS_* settings for boto3 to work on this store."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def use(self, changes: pytest.MonkeyPatch) -> None:
        """Point this process, and what it starts from now on, to this store."""
        for name in _OF_THE_USER:
            changes.delenv(name, raising=False)
        for name, value in self.environment.items():
            changes.setenv(name, value)


@contextmanager
def running_store(name: str) -> Iterator[Store]:
    """Start the store of this name, of STORES; stopped at the end, its objects gone."""
    with _RUN[name]() as endpoint:
        yield Store(name, endpoint)


@pytest.fixture(scope="session", params=STORES)
def s3_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Each store in turn. It sets no environment: `s3_store.use(monkeypatch)` does."""
    with running_store(request.param) as store:
        yield store


@contextmanager
def _moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    # A line a request would bury what a failing test has to say.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def _rclone() -> Iterator[str]:
    """rclone serving an empty folder of this machine, with nothing of its user's settings."""
    with tempfile.TemporaryDirectory(prefix="rclone-", ignore_cleanup_errors=True) as home:
        folder, log = Path(home, "objects"), Path(home, "log")
        folder.mkdir()
        with log.open("wb") as output:
            server = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("rclone")),
                    "serve",
                    "s3",
                    f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
                    "--addr=127.0.0.1:0",
                    "--config=/dev/null",
                    str(folder),
                ],
                env={"HOME": home, "TMPDIR": home},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            yield _announced(server, log)
        finally:
            _end(server)


def _announced(server: subprocess.Popen[bytes], log: Path) -> str:
    """The endpoint that rclone writes into its log once it listens."""
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        _, mark, rest = log.read_text("utf-8", "replace").partition(_LOG_MARK)
        if mark and "]" in rest:
            return rest.partition("]")[0].rstrip("/")
        time.sleep(0.05)
    raise RuntimeError(f"rclone did not start (exit status {server.poll()}): {log.read_text()}")


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


_RUN = {"moto": _moto, "rclone": _rclone}
