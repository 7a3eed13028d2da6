"""One process, one document after the other: what the outputs of real documents should be."""

from __future__ import annotations

from typing import Any

from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.systems.process_pool import build, whole

SETTINGS = "No parallelism. The others' outputs are compared with these where pages are real."


def run(job: Job, ray_folder: str) -> dict[str, Any]:
    """No Ray here."""
    del ray_folder
    measuring = Measuring(job)
    build(job)
    return measuring.ended([whole(document.number) for document in job.workload.documents])


def awaited(job: Job) -> int:
    """There is nobody to wait for."""
    del job
    return 0
