"""Microbatches of numbered rows, published and looked at one after another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import md5
from typing import Any

import boto3

from rayorch_prefect import Engine, Parent, ParentOutcome
from rayorch_prefect.binding.publishing import Shelf, publish_and_record
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.binding.upload_groups import in_rounds
from rayorch_prefect.execution.engine_run import Run
from rayorch_prefect.storage import RowOutcome, S3Location, Source, Terms
from rayorch_prefect.storage.keys import output_key
from tests.soak.toy import Numbered, expected

ROWS = 100
AT_ONCE = 3
BUCKET = "soak"
# Rows of one upload group, whose tries go on at the same time.
GROUP = 8


class Cycle:
    """`AT_ONCE` microbatches in the Engine; `faults` is what was not as it must be."""

    def __init__(self, engine: Engine, number: int, store: Any) -> None:
        self.faults: list[str] = []
        first = number * ROWS * AT_ONCE
        self.numbers = range(first, first + ROWS * AT_ONCE)
        self._engine = engine
        self._store = store
        self._place = f"{number}/"
        self._ends: dict[int, bytes | str] = {}
        self._shelf = Shelf(
            S3Location(BUCKET, f"{self._place}out/"),
            "toy",
            engine.plan.fingerprint,
            terms=Terms(conditional=True),
        )

    def run(self, pool: ThreadPoolExecutor) -> None:
        """Run, publish, compare, and leave nothing in the store."""
        uploads: list[Future[None]] = []
        runs = [self._submitted(at) for at in range(AT_ONCE)]
        for run in runs:
            for parents in grouped(run):
                uploads.append(pool.submit(self._upload, parents))
        for upload in uploads:
            upload.result()
        self._compare()
        self._remove_all()

    def _submitted(self, at: int) -> Run:
        numbers = self.numbers[at * ROWS : (at + 1) * ROWS]
        return self._engine.submit([Numbered(number, self._uri(number)) for number in numbers])

    def _uri(self, number: int) -> str:
        return f"s3://{BUCKET}/{self._place}in/{number}.json"

    def _upload(self, parents: list[Parent]) -> None:
        whole: dict[int, Any] = {}
        for parent in parents:
            number = parent.row.number
            if number in self._ends:
                self.faults.append(f"row {number} ended twice")
            self._ends[number] = parent.cause.type if parent.cause else ""
            if parent.outcome is ParentOutcome.COMPLETED:
                whole[number] = partial(self._apply, parent)
        for number, end in in_rounds(whole) if whole else ():
            if isinstance(end, Exception):
                self.faults.append(f"row {number} was not uploaded: {end!r}")

    def _apply(self, parent: Parent) -> Future[Row]:
        key = f"in/{parent.row.number}.json"
        source = Source(parent.row.uri, "1", 1, key)
        row = Row(source, RowOutcome.PUBLISHED, children=parent.children)
        return self._engine.apply(publish_and_record, parent, self._shelf, row)

    def _compare(self) -> None:
        found = self._listed("out/in/")
        wanted: dict[str, str] = {}
        for number in self.numbers:
            end = expected(number)
            if isinstance(end, bytes):
                wanted[self._key(number)] = md5(end).hexdigest()
            failed_as = "" if isinstance(end, bytes) else end
            if self._ends.get(number) != failed_as:
                is_now = self._ends.get(number, "nothing")
                self.faults.append(f"row {number} ended as {is_now!r}, not as {failed_as!r}")
        if found != wanted:
            odd = sorted({key for key, _ in found.items() ^ wanted.items()})
            self.faults.append(f"{len(odd)} outputs are not as they should be: {odd[:5]}")
        entries = {uri for uri, _ in self._shelf.entries()}
        recorded = {self._uri(number) for number in self.numbers if is_published(number)}
        if entries != recorded:
            self.faults.append(f"the ledger is wrong about {sorted(entries ^ recorded)[:5]}")

    def _key(self, number: int) -> str:
        return output_key(f"{self._place}out/", f"in/{number}.json", ".txt")

    def _listed(self, below: str) -> dict[str, str]:
        """ETag by key, asked of the store itself."""
        pages = self._store.get_paginator("list_objects_v2")
        return {
            each["Key"]: each["ETag"].strip('"')
            for page in pages.paginate(Bucket=BUCKET, Prefix=f"{self._place}{below}")
            for each in page.get("Contents", [])
        }

    def _remove_all(self) -> None:
        keys = list(self._listed(""))
        for start in range(0, len(keys), 1000):
            objects = [{"Key": key} for key in keys[start : start + 1000]]
            self._store.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})


def is_published(number: int) -> bool:
    return isinstance(expected(number), bytes)


def grouped(run: Run) -> Iterator[list[Parent]]:
    """Parents as they come, several at a time."""
    group: list[Parent] = []
    for parent in run:
        group.append(parent)
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group


def store_at(endpoint: str) -> Any:
    """A client of the store itself, and a bucket there."""
    store = boto3.client("s3", endpoint_url=endpoint)
    store.create_bucket(Bucket=BUCKET)
    return store
