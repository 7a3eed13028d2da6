"""What both sides of W8 share: the program over sources of a store, and what it published."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.bodies import Output
from benchmarks.calls import Job
from benchmarks.systems.ours import Assemble, ListRanges, Range, Read, ranges_of, used
from benchmarks.workloads import Workload
from rayorch_prefect import Program, Source
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.listing import list_keys
from rayorch_prefect.storage.objects import get_object
from rayorch_prefect.storage.seeding import seed

SOURCE = S3Location("bench", "in/")
DESTINATION = S3Location("bench", "out/")
UPLOADERS = 4

_READ_AT_ONCE = 8


class ListSourceRanges(ListRanges):
    """A source's pages in ranges: its key names the document and how many pages it has."""

    def __call__(self, sources: list[Any]) -> list[list[Range]]:
        return super().__call__([numbers(source) for source in sources])


class AssembleSource(Assemble):
    """The same over sources."""

    def __call__(self, sources: list[Any], groups: list[Any]) -> list[Output]:
        return super().__call__([numbers(source) for source in sources], groups)


def numbers(source: Source) -> tuple[int, int]:
    """(document, pages) of a source."""
    document, pages = source.key.removeprefix(SOURCE.prefix).split("-")
    return int(document), int(pages)


def seeded(workload: Workload) -> None:
    """One small object a document."""
    names = [f"{each.number:05}-{each.pages}" for each in workload.documents]
    seed(SOURCE, {name: name.encode() for name in names}, "text/plain")


def declared(job: Job) -> Program:
    """W2's ranges, without the stage that stands for an upload there."""
    work = job.workload
    read = used(Read, work.read_workers, work.batch, job)
    assemble = used(AssembleSource, work.assemble_workers, work.documents_a_call, job)
    return ranges_of(job, read, assemble, ListSourceRanges)


def published() -> list[Output]:
    """Every output in the store, read back."""
    keys = [key for key in list_keys(DESTINATION) if "/_rayorch/" not in f"/{key}"]
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        return list(pool.map(_output, keys))


def _output(key: str) -> Output:
    content = get_object(DESTINATION, key)
    assert content is not None
    output: Output = json.loads(content)
    return output
