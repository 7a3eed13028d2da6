"""Daft, on Ray as the others or on its native runner."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import daft
import numpy as np
from daft import DataType, Series, col

from benchmarks.bodies import Output, Page, bodies
from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import NUM_CPUS, OwnRay

SETTINGS = (
    "daft.cls classes with batch methods and max_concurrency workers: rendered lists are exploded, "
    "read, grouped by document with list_agg and sorted in the assembling class. Runner: Ray "
    "(`runner=native`: its own)."
)

PAGE = DataType.struct(
    {"page": DataType.int64(), "shape": DataType.list(DataType.int64()), "image": DataType.binary()}
)
OUTPUT = DataType.struct(
    {
        "document": DataType.int64(),
        "pages": DataType.int64(),
        "ordered": DataType.bool(),
        "digest": DataType.string(),
    }
)


def packed(page: Page) -> Page:
    """An image travels as bytes and shape."""
    image = page.get("image")
    if image is None:
        return {"page": page["page"], "shape": [], "image": b""}
    return {"page": page["page"], "shape": list(image.shape), "image": image.tobytes()}


def unpacked(document: int, page: Page) -> Page:
    """The page as a stage wants it."""
    found: Page = {"document": document, "page": page["page"]}
    if page["shape"]:
        found["image"] = np.frombuffer(page["image"], np.uint8).reshape(page["shape"])
    return found


class Stage:
    """What the four classes share."""

    stage = ""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, self.stage)


class Render(Stage):
    stage = "render"

    def work(self, documents: Series) -> list[list[Page]]:
        return [[packed(p) for p in self._bodies.rendered(d)] for d in documents.to_pylist()]


class Read(Stage):
    stage = "read"

    def work(self, documents: Series, pages: Series) -> list[str]:
        rows = zip(documents.to_pylist(), pages.to_pylist(), strict=True)
        return self._bodies.read([unpacked(document, page) for document, page in rows])


class Assemble(Stage):
    stage = "assemble"

    def work(self, documents: Series, pages: Series, texts: Series) -> list[Output]:
        outputs: list[Output] = []
        columns = (documents.to_pylist(), pages.to_pylist(), texts.to_pylist())
        for document, numbers, read in zip(*columns, strict=True):
            rows = sorted(zip(numbers, read, strict=True))
            ordered = [number for number, _ in rows]
            outputs.append(self._bodies.assemble(document, ordered, [text for _, text in rows]))
        return outputs


class Upload(Stage):
    stage = "upload"

    def work(self, outputs: Series) -> list[Output]:
        return [self._bodies.upload(output) for output in outputs.to_pylist()]


def _used(cls: type[Any], job: Job, dtype: Any, workers: int, batch: int, native: bool) -> Any:
    """The class as Daft wants it, with a batch size that is known only now."""
    method = daft.method.batch(return_dtype=dtype, batch_size=batch)(cls.work)
    body = {"work": method, "__module__": cls.__module__}
    declared = daft.cls(
        max_concurrency=workers, cpus=NUM_CPUS, use_process=True if native else None
    )(type(cls.__name__, (cls,), body))
    return declared(job).work


def run(job: Job, ray_folder: str, runner: str = "ray") -> dict[str, Any]:
    """`runner` is ray or native."""
    work, native = job.workload, runner == "native"
    own = None if native else OwnRay(work, ray_folder)
    if native:
        daft.set_runner_native()
    else:
        daft.set_runner_ray()
    measuring = Measuring(job)

    def used(cls: type[Any], dtype: Any, workers: int, batch: int) -> Any:
        return _used(cls, job, dtype, workers, batch, native)

    pages = DataType.list(PAGE)
    render = used(Render, pages, work.render_workers, work.documents_a_call)
    read = used(Read, DataType.string(), work.read_workers, work.batch)
    assemble = used(Assemble, OUTPUT, work.assemble_workers, work.documents_a_call)
    frame: Any = daft.from_pydict({"document": [each.number for each in work.documents]})
    frame = frame.with_column("page", render(col("document"))).explode("page")
    frame = frame.with_column("text", read(col("document"), col("page")))
    frame = frame.select(col("document"), col("page").get("page").alias("number"), col("text"))
    frame = frame.groupby("document").agg(col("number").list_agg(), col("text").list_agg())
    output = assemble(col("document"), col("number"), col("text"))
    frame = frame.select(output.alias("output"))
    if work.upload_workers:
        upload = used(Upload, OUTPUT, work.upload_workers, 1)
        frame = frame.select(upload(col("output")).alias("output"))
    outputs = [row["output"] for row in frame.iter_rows()]
    return measuring.ended(outputs, **(own.store() if own else {}))


def awaited(job: Job, runner: str = "ray") -> int:
    """Later pools start on first use: the clock does not wait for them."""
    work = job.workload
    return work.render_workers + (work.read_workers if runner == "ray" else 0)
