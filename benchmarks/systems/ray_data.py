"""Ray Data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import ray.data

from benchmarks.bodies import Page, bodies
from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import NUM_CPUS, OwnRay
from benchmarks.workloads import MIB

SETTINGS = (
    "Stateful transforms in actor pools of fixed size, as its guide to batch inference says: "
    "flat_map (a generator) -> map_batches -> groupby().map_groups -> map. One input block a "
    "document, at most 200; 8 shuffle partitions, 4 for large pages, whose blocks are 64 MiB."
)


class Render:
    """A generator, so that a long document is not in memory at once."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "render")

    def __call__(self, row: dict[str, Any]) -> Iterator[Page]:
        yield from self._bodies.rendered(int(row["document"]))


class Read:
    """A batch is a dict of columns."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "read")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        names, columns = list(batch), list(batch.values())
        pages = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        texts = np.array(self._bodies.read(pages), dtype=object)
        return {"document": batch["document"], "page": batch["page"], "text": texts}


class Assemble:
    """A group is a document's pages in any order."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "assemble")

    def __call__(self, group: Any) -> dict[str, Any]:
        pages = group.sort_values("page")
        number = int(pages["document"].iloc[0])
        output = self._bodies.assemble(number, pages["page"].tolist(), pages["text"].tolist())
        return {name: np.array([value]) for name, value in output.items()}


class Upload:
    """One row."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "upload")

    def __call__(self, output: dict[str, Any]) -> dict[str, Any]:
        return self._bodies.upload(output)


def run(job: Job, ray_folder: str, partitions: int = 0, block_mib: int = 64) -> dict[str, Any]:
    """`partitions` of the shuffle; 0: as SETTINGS says."""
    work = job.workload
    large = work.kind != "none"
    own = OwnRay(work, ray_folder)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    if large:
        context.target_max_block_size = block_mib * MIB
    measuring = Measuring(job)

    def pool(workers: int) -> dict[str, Any]:
        return {
            "compute": ray.data.ActorPoolStrategy(size=workers),
            "fn_constructor_args": (job,),
            "num_cpus": NUM_CPUS,
        }

    rows = [{"document": document.number} for document in work.documents]
    rendered = ray.data.from_items(rows, override_num_blocks=min(200, len(rows))).flat_map(
        Render, **pool(work.render_workers)
    )
    read = rendered.map_batches(
        Read, batch_size=work.batch, batch_format="numpy", **pool(work.read_workers)
    )
    grouped: Any = read.groupby("document", num_partitions=partitions or (4 if large else 8))
    ended = grouped.map_groups(Assemble, batch_format="pandas", **pool(work.assemble_workers))
    if work.upload_workers:
        ended = ended.map(Upload, **pool(work.upload_workers))
    outputs = [
        {
            "document": int(row["document"]),
            "pages": int(row["pages"]),
            "ordered": bool(row["ordered"]),
            "digest": str(row["digest"]),
        }
        for row in ended.iter_rows()
    ]
    return measuring.ended(outputs, **own.store())


def awaited(job: Job) -> int:
    """The pools after the shuffle start later: the clock does not wait for them."""
    return job.workload.render_workers + job.workload.read_workers
