"""rayorch 0.1.1, the paper's implementation."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import rayorch as ro

from benchmarks.bodies import Output, Page, bodies
from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import NUM_CPUS, OwnRay

SETTINGS = (
    "F.expand and F.reduce as in its README, one RayModule a stage; one input batch with all "
    "documents, or `window` documents (input_batch_size), `active` of them at a time "
    "(max_active_input_batches)."
)


class Render:
    """One document an item."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "render")

    def run(self, documents: list[int]) -> list[list[Page]]:
        return [self._bodies.render(number) for number in documents]


class Read:
    """One page an item."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "read")

    def run(self, pages: list[Page]) -> list[Any]:
        texts = self._bodies.read(pages)
        return [(page["page"], text) for page, text in zip(pages, texts, strict=True)]


class Assemble:
    """One document an item."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "assemble")

    def run(self, documents: list[int], groups: list[Any]) -> list[Output]:
        return [
            self._bodies.assemble(number, [page for page, _ in group], [text for _, text in group])
            for number, group in zip(documents, groups, strict=True)
        ]


class Upload:
    """One document an item."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "upload")

    def run(self, outputs: list[Output]) -> list[Output]:
        return [self._bodies.upload(output) for output in outputs]


class Documents(ro.Pipeline):  # type: ignore[misc]
    """document -> pages -> document."""

    def __init__(self, job: Job) -> None:
        work = job.workload

        def module(cls: type, replicas: int, batch: int) -> Any:
            built = ro.RayModule(cls).pre_init(job)
            return built.ray_options(replicas=replicas, batch_size=batch, num_cpus=NUM_CPUS)

        self.render = module(Render, work.render_workers, work.documents_a_call)
        self.read = module(Read, work.read_workers, work.batch)
        self.assemble = module(Assemble, work.assemble_workers, work.documents_a_call)
        self.uploads = bool(work.upload_workers)
        self.upload = module(Upload, work.upload_workers, 1) if self.uploads else None

    def forward(self, documents: Any) -> Any:
        """Traced once."""
        texts = self.read(ro.F.expand(self.render(documents)))
        outputs = self.assemble(documents, ro.F.reduce(texts))
        return self.upload(outputs) if self.upload is not None else outputs


def run(job: Job, ray_folder: str, window: int | None = None, active: int = 1) -> dict[str, Any]:
    """See SETTINGS."""
    own = OwnRay(job.workload, ray_folder)
    measuring = Measuring(job)
    with ro.Executor(Documents(job)) as executor:
        result = executor.run(
            [document.number for document in job.workload.documents],
            input_batch_size=window,
            max_active_input_batches=active,
        )
        outputs = [one for one in result.outputs if not isinstance(one, ro.OutputIssue)]
        return measuring.ended(outputs, **own.store())
