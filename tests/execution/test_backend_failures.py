"""A service behind a stage that is down: the stage waits for it, and no row pays."""

from __future__ import annotations

import errno
import urllib.error
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from rayorch_prefect import BackendFailure, Engine, F, Program, program, run_local, stage
from rayorch_prefect.errors import BackendDown, SourceMissing, StoreError, StoreUnavailable
from rayorch_prefect.execution import pauses
from rayorch_prefect.execution.backend_failures import is_backend_failure

N = 12


def answered(status: int) -> Exception:
    error = RuntimeError("as requests and httpx do")
    error.response = SimpleNamespace(status_code=status)  # type: ignore[attr-defined]
    return error


def of_s3(status: int) -> Exception:
    response: Any = {"Error": {}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "GetObject")


def caused(cause: BaseException) -> Exception:
    error = ValueError("what the stage made of it")
    error.__cause__ = cause
    return error


def over_http(status: int) -> Exception:
    return urllib.error.HTTPError("http://127.0.0.1", status, "", Message(), None)


@pytest.mark.parametrize(
    "error",
    [
        BackendFailure("the model server restarts"),
        ConnectionRefusedError(),
        ConnectionResetError(),
        TimeoutError(),
        urllib.error.URLError(ConnectionRefusedError()),
        over_http(503),
        answered(429),
        answered(500),
        of_s3(503),
        EndpointConnectionError(endpoint_url="http://127.0.0.1"),
        caused(ConnectionRefusedError()),
        StoreUnavailable("the session token has expired"),
        OSError(errno.ENOSPC, "No space left on device"),
        caused(OSError(errno.EDQUOT, "Disk quota exceeded", "/data/x")),
    ],
)
def test_a_failure_of_the_backend(error: Exception) -> None:
    assert is_backend_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("connection"),
        OSError(5, "disk"),
        FileNotFoundError(),
        urllib.error.URLError("unknown url type"),
        over_http(404),
        answered(400),
        of_s3(403),
        StoreError("AccessDenied"),
        SourceMissing("was listed and is gone"),
        KeyError("status"),
    ],
)
def test_a_failure_of_the_row(error: Exception) -> None:
    assert not is_backend_failure(error)


def asking(flag: Path, **options: Any) -> Program:
    """Children ask a service that is down while `flag` is there; each call is noted beside it."""

    def ask(n: int) -> int:
        calls = flag.with_name("calls")
        with calls.open("a") as file:
            file.write(f"{n}\n")
        if flag.exists():
            if len(calls.read_text().splitlines()) >= int(flag.read_text()):
                flag.unlink(missing_ok=True)  # it is up again for the next one
            raise ConnectionRefusedError("port 8000")
        return n

    def split(n: int) -> list[int]:
        return list(range(n))

    @program(version="1")
    def asks(source):  # type: ignore[no-untyped-def]
        children = F.expand(stage(split)(source), domain="child")
        return F.reduce(stage(ask, batch_size=4, **options)(children))

    return asks


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pauses, "FIRST_PROBE_S", 0.05)
    return tmp_path / "down"


@pytest.mark.parametrize("down_for", [6, 14])
def test_an_outage_is_waited_out(flag: Path, down_for: int) -> None:
    flag.write_text(str(down_for))
    (parent,) = run_local(asking(flag, retry_budget=3), [N])
    assert parent.value() == list(range(N))
    # The probes were single rows: a batch of four at a time would have asked more often.
    asked = len(flag.with_name("calls").read_text().splitlines())
    assert asked <= N + down_for


@pytest.mark.usefixtures("cluster")
def test_an_outage_is_waited_out_on_ray(flag: Path) -> None:
    flag.write_text("10")
    with Engine(asking(flag)) as engine:
        (parent,) = engine.run([N])
        assert parent.value() == list(range(N))


def test_a_backend_that_stays_down_ends_the_run_and_is_named(flag: Path) -> None:
    flag.write_text("1000000")
    with pytest.raises(BackendDown, match=r"stage ask: .*ConnectionRefusedError: port 8000"):
        list(run_local(asking(flag, backend_patience_s=0.3), [N]))


def test_without_patience_its_rows_are_spent(flag: Path) -> None:
    flag.write_text("1000000")
    (parent,) = run_local(asking(flag, backend_patience_s=None), [N])
    assert parent.cause is not None
    assert parent.cause.type == "ConnectionRefusedError"
