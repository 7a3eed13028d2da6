"""rayorch-prefect under the shared yardstick: the Engine without Prefect.

Used by the yardstick's `run.py` as system `ours`: put this folder on PYTHONPATH.
"""

from __future__ import annotations

import time
from typing import Any

from workload import (  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
    Kit,
    init_ray,
    n_actors,
    report,
    rss_mb,
    with_dir,
)

from rayorch_prefect import Engine, F, GroupFailure, ParentOutcome, Program, program, stage


class ListRanges:
    """A document's pages in ranges, so that a long one holds nothing back."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, docs: list[Any]) -> list[Any]:
        return [[(d, n, i, min(n, i + self.step)) for i in range(0, n, self.step)] for d, n in docs]


class Render:
    def __init__(self, wl: Any) -> None:
        self.kit, self.first = Kit(wl, "render"), True

    def __call__(self, docs: list[Any]) -> list[Any]:
        if self.first:
            self.kit.gate()
            self.first = False
        return [self.kit.render(*doc) for doc in docs]


class Ocr:
    def __init__(self, wl: Any) -> None:
        self.kit = Kit(wl, "ocr")

    def __call__(self, pages: list[Any]) -> list[Any]:
        return [GroupFailure("poison") if text is None else text for text in self.kit.ocr(pages)]


class Assemble:
    def __init__(self, wl: Any) -> None:
        self.kit = Kit(wl, "assemble")

    def __call__(self, docs: list[Any], groups: list[Any]) -> list[Any]:
        return [
            self.kit.assemble(d, range(len(texts)), texts)
            for (d, _), texts in zip(docs, groups, strict=True)
        ]


class AssembleRanges:
    def __init__(self, wl: Any) -> None:
        self.kit = Kit(wl, "assemble")

    def __call__(self, docs: list[Any], groups: list[Any]) -> list[Any]:
        done = []
        for (d, _), ranges in zip(docs, groups, strict=True):
            texts = [text for texts in ranges for text in texts]
            done.append(self.kit.assemble(d, range(len(texts)), texts))
        return done


class Upload:
    def __init__(self, wl: Any) -> None:
        self.kit = Kit(wl, "upload")

    def __call__(self, outs: list[Any]) -> list[Any]:
        return [self.kit.upload(out) for out in outs]


def build(wl: Any) -> Program:
    def use(cls: type, replicas: int, batch: int, *args: Any) -> Any:
        return stage(cls, replicas=replicas, batch_size=batch, num_cpus=0.01)(*(args or (wl,)))

    render = use(Render, wl.render_workers, wl.doc_batch)
    ocr = use(Ocr, wl.ocr_workers, wl.ocr_batch)
    upload = use(Upload, wl.upload_workers, 1) if wl.upload_workers else None

    @program(version="1")
    def whole(doc: Any) -> Any:
        texts = ocr(F.expand(render(doc), domain="page"))
        out = use(Assemble, wl.assemble_workers, wl.doc_batch)(doc, F.reduce(texts))
        return upload(out) if upload else out

    @program(version="1")
    def ranges(doc: Any) -> Any:
        parts = use(ListRanges, 1, 16, wl.ocr_batch)(doc)
        pages = F.expand(render(F.expand(parts, domain="range")), domain="page")
        texts = F.reduce(F.reduce(ocr(pages)))
        out = use(AssembleRanges, wl.assemble_workers, wl.doc_batch)(doc, texts)
        return upload(out) if upload else out

    return ranges if wl.render_page_s else whole


def run(wl: Any, run_dir: str, **options: Any) -> dict[str, Any]:
    wl = with_dir(wl, run_dir, n_actors(wl))
    init_ray()
    t_call = time.time()
    with Engine(build(wl), **options) as engine:
        rss0 = rss_mb()
        outs = [
            parent.value()
            for parent in engine.run(list(wl.docs))
            if parent.outcome is ParentOutcome.COMPLETED
        ]
        result: dict[str, Any] = report(wl, outs, t_call, rss0, rss_after_mb=rss_mb())
        metrics = engine.metrics
        result["retries"], result["suppressed"] = metrics.retries, metrics.suppressed
        result["fill"] = {call.stage: round(call.fill, 3) for call in metrics.calls}
        return result
