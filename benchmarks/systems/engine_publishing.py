"""rayorch-prefect without Prefect: the Engine, and each document stored as soon as it is whole."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import OwnRay
from benchmarks.own_store import own_store
from benchmarks.systems.publishing import (
    DESTINATION,
    SOURCE,
    UPLOADERS,
    declared,
    published,
    seeded,
)
from rayorch_prefect import Engine, ParentOutcome
from rayorch_prefect.binding.publishing import Shelf, publish_and_record
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.storage import RowOutcome, list_sources, probe

SETTINGS = (
    "The Engine and four uploader actors of its own, without Prefect: each document is stored by "
    "them, with its ledger entry, the moment it is whole. An S3 server (rclone) on 127.0.0.1."
)


def run(job: Job, ray_folder: str) -> dict[str, Any]:
    """One run over all sources; the clock stops when the last one is stored."""
    with own_store():
        seeded(job.workload)
        OwnRay(job.workload, ray_folder)
        measuring = Measuring(job)
        program = declared(job)
        plain = Shelf(DESTINATION, program.plan.name, program.plan.fingerprint)
        shelf = plain.by_terms_of(probe(DESTINATION))
        with Engine(program, appliers=UPLOADERS) as engine:
            stored: list[Future[Row]] = []
            for parent in engine.run(list_sources(SOURCE)):
                assert parent.outcome is ParentOutcome.COMPLETED, parent.cause
                stored.append(engine.apply(publish_and_record, parent, shelf, _row(parent)))
            for each in stored:
                each.result()
            at = time.time()
        return measuring.ended(published(), at)


def _row(parent: Parent) -> Row:
    return Row(
        source=parent.row,
        outcome=RowOutcome.PUBLISHED,
        children=parent.children,
        attempts=parent.attempts,
        started=parent.started,
        finished=parent.finished,
    )
