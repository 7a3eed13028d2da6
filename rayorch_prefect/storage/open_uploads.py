"""Uploads in parts that are open at the store: noted while they are, closed, swept.

S3 keeps the parts of an upload that nobody ends, and bills them. An upload says nothing of who
began it, so each is noted below the program's state folder first: what a run that died left open
is found by its notes, and uploads of others are left alone.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import ClientError

from rayorch_prefect.errors import StoreError
from rayorch_prefect.storage.answers import error_code, explained
from rayorch_prefect.storage.client import s3_client
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.locations import S3Location
from rayorch_prefect.storage.reading import get_object

_GONE = ("NoSuchUpload",)


@contextmanager
def closed_at_the_end(
    folder: S3Location | None, place: S3Location, key: str
) -> Iterator[Callable[[], None]]:
    """Note in `folder` that an upload to `key` may be open, and close what the inside leaves open.

    After a success too: an answer that was lost may have left a second upload behind. The note
    stays where that fails, and where the inside has said, by calling what it is given, that one
    more may come to be when nobody waits for it. Raises StoreError if it cannot be written.
    """
    note = f"{folder.prefix}{uuid.uuid4().hex}.json" if folder else ""
    if folder:
        _write_note(folder, note, key)
    late: list[bool] = []
    try:
        yield lambda: late.append(True)
    finally:
        with suppress(StoreError):
            if folder and late:
                _write_note(folder, note, key, late=True)
            close_uploads(place, key)
            if folder and not late:
                _remove(folder, note)


def close_uploads(place: S3Location, key: str) -> int:
    """Abort every open upload to this very key; how many. Raises StoreError."""
    found = [each["UploadId"] for each in _open_uploads(place, key)]
    for id in found:
        abort_upload(place, key, id)
    return len(found)


def abort_upload(place: S3Location, key: str, id: str) -> None:
    """Let the store forget this upload and its parts. Raises StoreError."""
    with explained("abort the upload of", place.uri_of(key)):
        try:
            s3_client(place.access).abort_multipart_upload(
                Bucket=place.bucket, Key=key, UploadId=id
            )
        except ClientError as error:
            if error_code(error) not in _GONE:
                raise


def sweep_uploads(folder: S3Location, *, forget_late: bool = True) -> int:
    """Close what the notes in `folder` say may be open, and remove them; how many were open.

    Only for a time when nothing of the program uploads: before a run's first upload, after its
    last. Then `forget_late` is False: what the run asked for may still come to be. Raises
    StoreError.
    """
    closed, errors = 0, []
    for note in list(list_keys(folder)):
        try:
            content = get_object(folder, note)
            if content is not None:
                key, late = _told_in(content, folder.uri_of(note))
                closed += close_uploads(folder, key)
                if forget_late or not late:
                    _remove(folder, note)
        except StoreError as error:
            errors.append(error)  # the others can be closed all the same
    if errors:
        raise errors[0]
    return closed


def _write_note(folder: S3Location, note: str, key: str, *, late: bool = False) -> None:
    with explained("write", folder.uri_of(note)):
        s3_client(folder.access).put_object(
            Bucket=folder.bucket,
            Key=note,
            Body=json.dumps({"key": key, "late": late}).encode(),
            ContentType="application/json",
        )


def _told_in(content: bytes, uri: str) -> tuple[str, bool]:
    """The key, and whether one more upload to it may come to be."""
    try:
        told = json.loads(content)
        return str(told["key"]), bool(told.get("late"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(
            f"{uri} is no note of an open upload: {error}; delete that object and run again"
        ) from error


def _open_uploads(place: S3Location, key: str) -> Iterator[dict[str, Any]]:
    pages = s3_client(place.access).get_paginator("list_multipart_uploads")
    answers = iter(pages.paginate(Bucket=place.bucket, Prefix=key))
    while True:
        with explained("list the open uploads of", place.uri_of(key)):
            try:
                page = next(answers, None)
            except ClientError as error:
                # The word of some stores for a bucket that never had any.
                if error_code(error) not in _GONE:
                    raise
                page = None
        if page is None:
            return
        yield from (dict(each) for each in page.get("Uploads", []) if each.get("Key") == key)


def _remove(folder: S3Location, key: str) -> None:
    with explained("remove", folder.uri_of(key)):
        s3_client(folder.access).delete_object(Bucket=folder.bucket, Key=key)
