"""rayorch-prefect under the yardstick of real payloads: the Engine without Prefect.

Used by that yardstick's `run.py` as system `ours`: put this folder on PYTHONPATH. Pages are made
one level below the document, as Grains of their own: a document larger than the object store
passes, because its first pages are read before its last ones are made.
"""

from __future__ import annotations

import time
from typing import Any

from workload import (  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    Ray,
    prepare,
    report,
)

from rayorch_prefect import Engine, F, ParentOutcome, Program, program, stage


class ListPages:
    def __call__(self, docs: list[Any]) -> list[Any]:
        return [[(doc, page) for page in range(n)] for doc, n, _ in docs]


class Render:
    def __init__(self, wl: Any) -> None:
        self.kit = wl.kit("render")

    def __call__(self, pages: list[Any]) -> list[Any]:
        return [next(self.kit.render(doc, page, page + 1)) for doc, page in pages]


class Ocr:
    def __init__(self, wl: Any) -> None:
        self.kit = wl.kit("ocr")

    def __call__(self, pages: list[Any]) -> list[Any]:
        columns = ([page[name] for page in pages] for name in ("doc", "page", "img"))
        texts = self.kit.ocr(*columns)
        return [(page["page"], text) for page, text in zip(pages, texts, strict=True)]


class Assemble:
    def __init__(self, wl: Any) -> None:
        self.kit = wl.kit("assemble")

    def __call__(self, docs: list[Any], groups: list[Any]) -> list[Any]:
        return [
            self.kit.assemble(doc[0], [page for page, _ in group], [text for _, text in group])
            for doc, group in zip(docs, groups, strict=True)
        ]


def build(wl: Any) -> Program:
    def use(cls: type, replicas: int, batch: int, *args: Any) -> Any:
        return stage(cls, replicas=replicas, batch_size=batch, num_cpus=0.01)(*args)

    pages = use(ListPages, 1, 16)
    render = use(Render, wl.render_workers, wl.ocr_batch, wl)
    ocr = use(Ocr, wl.ocr_workers, wl.ocr_batch, wl)
    assemble = use(Assemble, wl.assemble_workers, 1, wl)

    @program(version="1")
    def documents(doc: Any) -> Any:
        texts = ocr(render(F.expand(pages(doc), domain="page")))
        return assemble(doc, F.reduce(texts))

    return documents


def run(wl: Any, run_dir: str, **options: Any) -> dict[str, Any]:
    wl = prepare(wl, run_dir, wl.render_workers + wl.ocr_workers + wl.assemble_workers)
    cluster = Ray(wl)
    t_call = time.time()
    with Engine(build(wl), **options) as engine:
        outs = [
            parent.value()
            for parent in engine.run(list(wl.docs))
            if parent.outcome is ParentOutcome.COMPLETED
        ]
        result: dict[str, Any] = report(wl, outs, t_call, **cluster.stats())
        metrics = engine.metrics
        result["bound_mb"], result["peak_pending_mb"] = (
            (engine.bound.bytes or 0) / 2**20,
            metrics.peak_pending_mb,
        )
        result["fills"] = {call.stage: round(call.fill, 3) for call in metrics.calls}
        return result
