"""Which exceptions of a stage say that a service or a disk behind it is at fault, not the row."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.errors import StoreUnavailable
from rayorch_prefect.execution.full_disk import is_full_disk
from rayorch_prefect.model.failures import BackendFailure

_OWN = (BackendFailure, StoreUnavailable, ConnectionError, TimeoutError)
# (package, class) of exceptions, by name as the packages need not be installed.
_OF_CLIENTS = {
    ("aiohttp", "ClientConnectionError"),
    ("botocore", "ConnectionError"),
    ("botocore", "HTTPClientError"),
    ("httpx", "TransportError"),
    ("openai", "APIConnectionError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    ("urllib3", "MaxRetryError"),
    ("urllib3", "TimeoutError"),
}
_TOO_MANY_REQUESTS = 429


def is_backend_failure(error: BaseException) -> bool:
    """Whether no other row would have fared better: no connection, a time-out, 429 or 5xx, a store
    whose credentials have expired, a full disk.

    What an error was raised from counts too.
    """
    while not _says_so(error):
        if error.__cause__ is None:
            return False
        error = error.__cause__
    return True


def _says_so(error: BaseException) -> bool:
    if isinstance(error, _OWN) or isinstance(getattr(error, "reason", None), _OWN):
        return True
    if is_full_disk(error):
        return True
    bases = type(error).__mro__
    if any((base.__module__.partition(".")[0], base.__name__) in _OF_CLIENTS for base in bases):
        return True
    status = _status(error)
    return status is not None and (status == _TOO_MANY_REQUESTS or 500 <= status < 600)


def _status(error: Any) -> int | None:
    """The HTTP status that an error carries, where its kind of client puts it."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        found: Any = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return found if isinstance(found, int) else None
    for holder in (response, error):
        for name in ("status_code", "status", "code"):
            found = getattr(holder, name, None)
            if isinstance(found, int) and not isinstance(found, bool):
                return found
    return None
