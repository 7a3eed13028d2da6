"""How far this machine's clock is from the store's."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import ClientError

from rayorch_prefect.storage.answers import explained
from rayorch_prefect.storage.client import CONNECT_TIMEOUT, new_client
from rayorch_prefect.storage.locations import S3Location

REFUSED_SECONDS = 900
"""From which skew on S3 refuses requests."""

# Dates are cut to whole seconds.
_HALF = 0.5


def clock_skew(location: S3Location) -> float | None:
    """Seconds by which this clock is ahead of that of the store, to about one; behind if negative.

    By the Date header of one answer, a refusal's too; None if there is none. Raises StoreError if
    nothing answers, UsageError for AWS_* settings that make no client.
    """
    client = new_client(CONNECT_TIMEOUT, CONNECT_TIMEOUT, 1, location.access)
    asked = time.time()
    with explained("ask", str(location)):
        try:
            answer: Any = client.head_bucket(Bucket=location.bucket)
        except ClientError as error:
            answer = error.response
    here = (asked + time.time()) / 2
    there = _date_of(answer)
    return None if there is None else here - there - _HALF


def _date_of(answer: Any) -> float | None:
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
