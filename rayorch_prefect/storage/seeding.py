"""Filling a bucket from memory and copying one to disk: for demos and trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.answers import error_code, explained
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.objects import get_object, put_object

_OURS_ALREADY = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def seed(location: S3Location, files: Mapping[str, bytes], content_type: str) -> None:
    """Make the bucket if it is not there, and store each file below the prefix by its name.

    Raises StoreError.
    """
    with explained("create", f"s3://{location.bucket}"):
        try:
            s3_client(location.access).create_bucket(Bucket=location.bucket)
        except ClientError as error:
            if error_code(error) not in _OURS_ALREADY:
                raise
    for name, content in files.items():
        put_object(location, location.prefix + name, content, content_type)


def copy_to_folder(location: S3Location, folder: Path) -> int:
    """Write every object below the prefix into `folder`, without the prefix; how many.

    Meant for keys of our own layout, whose segments are file names. Raises StoreError if an
    object is gone by then, or its key would leave the folder.
    """
    count = 0
    for key in list_keys(location):
        path = folder / key.removeprefix(location.prefix)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise StoreError(f"{location.uri_of(key)} would be written outside of {folder}")
        content = get_object(location, key)
        if content is None:
            raise StoreError(f"{location.uri_of(key)} was listed and is gone; copy again")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        count += 1
    return count
