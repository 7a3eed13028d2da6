"""A process pool: a task a document, which does everything in one process."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.bodies import Bodies, Output, Page, bodies
from benchmarks.calls import STAGES, Job
from benchmarks.measured import Measuring

SETTINGS = (
    "concurrent.futures.ProcessPoolExecutor, spawned, as many processes as readers; a document's "
    "pages are read in batches of its own. `longest=True`: the longest document first."
)
# Ray runs its workers at this niceness.
NICE = 15

_own: dict[str, Bodies] = {}


def build(job: Job) -> None:
    """All stages in this process."""
    os.nice(NICE)
    _own.update({stage: bodies(job, stage) for stage in STAGES})


def whole(number: int) -> Output:
    """One document in this process."""
    return whole_with(_own, number)


def whole_with(own: Mapping[str, Bodies], number: int) -> Output:
    """One document from its pages to its upload."""
    work = own["render"].workload
    texts: list[str] = []
    waiting: list[Page] = []
    for page in own["render"].rendered(number):
        waiting.append(page)
        if len(waiting) == work.batch:
            texts += own["read"].read(waiting)
            waiting = []
    if waiting:
        texts += own["read"].read(waiting)
    output = own["assemble"].assemble(number, range(len(texts)), texts)
    return own["upload"].upload(output) if work.upload_workers else output


def run(job: Job, ray_folder: str, longest: bool = False) -> dict[str, Any]:
    """No Ray here."""
    del ray_folder
    work = job.workload
    documents = sorted(work.documents, key=lambda each: -each.pages) if longest else work.documents
    measuring = Measuring(job)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(work.read_workers, spawned, build, (job,)) as pool:
        futures = [pool.submit(whole, document.number) for document in documents]
        outputs = [future.result() for future in as_completed(futures)]
        return measuring.ended(outputs)


def awaited(job: Job) -> int:
    """Every process has all stages."""
    return len(STAGES) * min(job.workload.read_workers, len(job.workload.documents))
