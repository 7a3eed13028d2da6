"""Prefect alone: one flow, a task run a document."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.futures import as_completed
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner

from benchmarks.bodies import Bodies, Output, bodies
from benchmarks.calls import STAGES, Job
from benchmarks.measured import Measuring
from benchmarks.systems import process_pool

SETTINGS = (
    "task.submit a document, as many workers as readers: ThreadPoolTaskRunner (the default) where "
    "stages sleep, ProcessPoolTaskRunner where they compute, as the page on task runners says. A "
    "server of its own (SQLite), started before the clock. A document's pages are read in batches "
    "of its own."
)

_of_thread = threading.local()


def _own(job_file: str) -> dict[str, Bodies]:
    """All stages, once a thread: models are not shared."""
    own: dict[str, Bodies] | None = getattr(_of_thread, "bodies", None)
    if own is None:
        job: Job = pickle.loads(Path(job_file).read_bytes())
        own = _of_thread.bodies = {stage: bodies(job, stage) for stage in STAGES}
    return own


@task(log_prints=False)
def document(job_file: str, number: int) -> Output:
    """Everything of one document. The job lies in a file, as Prefect hashes arguments."""
    return process_pool.whole_with(_own(job_file), number)


def run(job: Job, ray_folder: str) -> dict[str, Any]:
    """No Ray here."""
    del ray_folder
    work = job.workload
    runner: Any = ThreadPoolTaskRunner if work.kind == "none" else ProcessPoolTaskRunner

    job_file = Path(job.folder) / "job.pickle"
    job_file.write_bytes(pickle.dumps(job))

    @flow(task_runner=runner(max_workers=work.read_workers))
    def documents() -> dict[str, Any]:
        measuring = Measuring(job)
        futures = [document.submit(str(job_file), each.number) for each in work.documents]
        return measuring.ended([future.result() for future in as_completed(futures)])

    return documents()


def awaited(job: Job) -> int:
    """Threads and processes start with their first task."""
    del job
    return 0
