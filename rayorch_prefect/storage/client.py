"""One S3 client a process, and the words for what a store answers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from rayorch_prefect.errors import StoreError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

MAX_CONNECTIONS = 32
_BODY_ATTEMPTS = 3
_BROKEN_BODY = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)

T = TypeVar("T")

_HINTS = {
    "NoSuchBucket": "check the name of the bucket and AWS_ENDPOINT_URL, or create it",
    "AccessDenied": "the credentials may not do this: ask for s3:ListBucket, s3:GetObject and "
    "s3:PutObject on this place",
    "InvalidAccessKeyId": "the store does not know this access key: check the AWS credentials",
    "SignatureDoesNotMatch": "the secret key does not fit: check the AWS credentials",
    "ExpiredToken": "the session token has expired: renew the AWS credentials",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "InvalidObjectState": "the object is archived: restore it first",
    "SlowDown": "the store asks for fewer requests: run fewer microbatches at a time",
}
_HINTS["403"] = _HINTS["AccessDenied"]

_lock = threading.Lock()
_clients: dict[tuple[object, ...], S3Client] = {}


def s3_client() -> S3Client:
    """The client of this process for the AWS_* settings as they are now; thread-safe.

    Credentials, region and endpoint come from boto3's own chain, AWS_ENDPOINT_URL included; with
    an endpoint of one's own botocore addresses buckets by path unless configured otherwise.
    """
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    identity = (os.getpid(), settings)
    with _lock:
        if identity not in _clients:
            # Older settings, and clients inherited by a fork, are of no use any more.
            _clients.clear()
            _clients[identity] = _build()
        return _clients[identity]


def _build() -> S3Client:
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": 4},
        max_pool_connections=MAX_CONNECTIONS,
        tcp_keepalive=True,
        # Several S3 servers reject or garble the trailing checksums that boto3 adds by default.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", config=config)


def with_whole_body(download: Callable[[], T]) -> T:
    """Call `download` again, at most twice, when its body breaks off: boto3 retries no bodies."""
    for _ in range(_BODY_ATTEMPTS - 1):
        try:
            return download()
        except _BROKEN_BODY:
            continue
    return download()


def error_code(error: ClientError) -> str:
    """The store's word for what went wrong, or the HTTP status where it gave none."""
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
    return str(answer.get("Error", {}).get("Code") or status)


@contextmanager
def explained(action: str, uri: str) -> Iterator[None]:
    """Turn what boto3 raises inside into a StoreError: action, uri, cause and what to do."""
    try:
        yield
    except ClientError as error:
        code = error_code(error)
        said = error.response.get("Error", {}).get("Message", "")
        raise StoreError(_sentence(action, uri, f"{code} {said}", _HINTS.get(code))) from error
    except NoCredentialsError as error:
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role"
        raise StoreError(_sentence(action, uri, "no AWS credentials found", hint)) from error
    except EndpointConnectionError as error:
        hint = "check AWS_ENDPOINT_URL, the region and the network"
        raise StoreError(_sentence(action, uri, str(error), hint)) from error
    except BotoCoreError as error:
        raise StoreError(_sentence(action, uri, str(error), None)) from error


def _sentence(action: str, uri: str, cause: str, hint: str | None) -> str:
    text = f"could not {action} {uri}: {cause.strip()}"
    return f"{text}; {hint}" if hint else text
