"""Whole objects out of the store."""

from __future__ import annotations

from contextlib import closing

from botocore.exceptions import ClientError

from rayorch_prefect.storage.answers import NOT_THERE, error_code, etag_of, explained
from rayorch_prefect.storage.client import s3_client, with_whole_body
from rayorch_prefect.storage.locations import S3Location


def get_object(location: S3Location, key: str) -> bytes | None:
    """The content under the whole `key`, None if there is none.

    Raises StoreError; also where the store may not say whether there is one.
    """

    def download() -> bytes:
        answer = s3_client(location.access).get_object(Bucket=location.bucket, Key=key)
        with closing(answer["Body"]) as body:
            etag_of(answer, "read", uri)
            return body.read()

    uri = location.uri_of(key)
    with explained("read", uri):
        try:
            return with_whole_body(download)
        except ClientError as error:
            if error_code(error) in NOT_THERE:
                return None
            raise
