"""One S3 client a process, with times to live by."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from urllib3.exceptions import HTTPError

from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage.access import Access, ClientSettings
from rayorch_prefect.storage.redaction import shown_cause, without_secrets

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_CONNECTIONS = 32
# Seconds. A store that accepts requests and never answers costs READ_TIMEOUT x ATTEMPTS.
CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
READ_TIMEOUT_SETTING = "RAYORCH_PREFECT_READ_TIMEOUT"
ATTEMPTS = 6
# boto3's own settings, where it would choose otherwise if they are not set. "adaptive" holds all
# requests of a client back, together, after the store has asked for fewer. Several S3 servers
# reject or garble the trailing checksums that boto3 adds wherever it can.
_DEFAULTS = {
    "AWS_RETRY_MODE": "adaptive",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}
_OURS = (READ_TIMEOUT_SETTING,)
_SLOW_DOWN_STATUS = 503
_BODY_ATTEMPTS = 3
# HTTPError: boto3 lets it through where the body that says why a download is refused breaks off.
_BROKEN_BODY = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError, HTTPError)

T = TypeVar("T")

_lock = threading.Lock()
_clients: dict[Access | None, tuple[tuple[object, ...], S3Client]] = {}
_asked_timeout: float | None = None
# The client that a thread was given last, whose answer it may have to explain; and any thread.
_last = threading.local()
_latest: S3Client | None = None


def s3_client(access: Access | None = None) -> S3Client:
    """The client of this process for `access` and the AWS_* settings as they are; thread-safe.

    Credentials, region and endpoint that `access` does not say come from boto3's own chain,
    AWS_ENDPOINT_URL included; with an endpoint of one's own botocore addresses buckets by path
    unless configured otherwise. Raises UsageError for settings that make no client,
    StoreUnavailable if `access` cannot say them now.
    """
    names = [name for name in os.environ if name.startswith("AWS_")]
    settings = tuple(sorted((name, os.environ.get(name, "")) for name in [*names, *_OURS]))
    identity = (os.getpid(), settings, _asked_timeout)
    global _latest
    with _lock:
        # Older settings, and clients inherited by a fork, are of no use any more.
        if access not in _clients or _clients[access][0] != identity:
            made = new_client(CONNECT_TIMEOUT, _read_timeout(), access=access)
            _clients[access] = identity, made
        _latest = _last.client = _clients[access][1]
        return _latest


def forget_credentials() -> None:
    """Let the next `s3_client` ask boto3's chain anew, such as a file that was rewritten."""
    with _lock:
        _clients.clear()


def new_client(
    connect_timeout: float,
    read_timeout: float,
    attempts: int | None = None,
    access: Access | None = None,
) -> S3Client:
    """A client beside that of the process; times in seconds, `attempts` a request.

    Raises UsageError for AWS_* settings or a profile that make no client, StoreUnavailable if
    `access` cannot say its own.
    """
    said = ClientSettings() if access is None else access.settings()
    return client_of(said, connect_timeout, read_timeout, attempts)


def client_of(
    said: ClientSettings, connect_timeout: float, read_timeout: float, attempts: int | None = None
) -> S3Client:
    """A new client with these settings. Raises UsageError for settings that make none."""
    try:
        tries = attempts or int(os.environ.get("AWS_MAX_ATTEMPTS") or ATTEMPTS)
        config = Config(
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries={"mode": _set("AWS_RETRY_MODE"), "total_max_attempts": tries},
            max_pool_connections=MAX_CONNECTIONS,
            tcp_keepalive=True,
            request_checksum_calculation=_set("AWS_REQUEST_CHECKSUM_CALCULATION"),
            response_checksum_validation=_set("AWS_RESPONSE_CHECKSUM_VALIDATION"),
        )
        client = boto3.session.Session().client("s3", config=config, **said.arguments())
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            f"the AWS settings make no S3 client: {without_secrets(str(error))}; expected "
            "AWS_ENDPOINT_URL like http://host:port or none, AWS_REGION like us-east-1, "
            "AWS_MAX_ATTEMPTS from 1, and AWS_PROFILE, if set, to name a profile that exists"
        ) from shown_cause(error)
    client.meta.events.register_first("needs-retry.s3", _name_slow_down)
    return client


def use_read_timeout(seconds: float | None) -> None:
    """Let the clients of this process wait so long for an answer; None is the environment's."""
    global _asked_timeout
    _asked_timeout = seconds


def check_timeout(seconds: float | None) -> None:
    """Raises UsageError unless it is a number of seconds, or None."""
    if seconds is not None and not 0 < seconds < math.inf:
        raise UsageError(f"s3_read_timeout is {seconds:g}; expected seconds, such as 60")


def _read_timeout() -> float:
    if _asked_timeout is not None:
        return _asked_timeout
    text = os.environ.get(READ_TIMEOUT_SETTING) or str(READ_TIMEOUT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < math.inf:
        raise UsageError(f"{READ_TIMEOUT_SETTING} is {text!r}; expected seconds, such as 60")
    return seconds


def _set(name: str) -> Any:
    return os.environ.get(name) or _DEFAULTS[name]


def _name_slow_down(response: tuple[Any, dict[str, Any]] | None, **_: object) -> None:
    """Give a 503 without a word of the store, as to HEAD, the word that boto3 slows down for."""
    if response is not None and response[0].status_code == _SLOW_DOWN_STATUS:
        error = response[1].setdefault("Error", {})
        if error.get("Code", "503") in ("503", "ServiceUnavailable"):
            error["Code"] = "SlowDown"


def endpoint() -> str:
    """Where this thread's requests went last, else those of any; "" as long as there is no client.

    There are no credentials in it.
    """
    client = getattr(_last, "client", _latest)
    return "" if client is None else without_secrets(client.meta.endpoint_url)


def with_whole_body(download: Callable[[], T]) -> T:
    """Call `download` again, at most twice, when its body breaks off: boto3 retries no bodies."""
    for _ in range(_BODY_ATTEMPTS - 1):
        try:
            return download()
        except _BROKEN_BODY:
            continue
    return download()
