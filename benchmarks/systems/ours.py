"""rayorch-prefect: the Engine, without Prefect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bodies import Output, Page, bodies
from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import NUM_CPUS, OwnRay
from rayorch_prefect import Engine, F, GroupFailure, ParentOutcome, Program, program, stage

SETTINGS = (
    "A document expands to its pages; where rendering costs time or memory, to ranges of one batch "
    "or to single pages first, which are rendered as Grains of their own. Defaults otherwise."
)

Range = tuple[int, int, int]


class ListRanges:
    """A document's pages in ranges of `step`."""

    def __init__(self, step: int) -> None:
        self._step = step

    def __call__(self, documents: list[tuple[int, int]]) -> list[list[Range]]:
        step = self._step
        return [
            [(number, first, min(pages, first + step)) for first in range(0, pages, step)]
            for number, pages in documents
        ]


class RenderWhole:
    """One document a row."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "render")

    def __call__(self, documents: list[tuple[int, int]]) -> list[list[Page]]:
        return [self._bodies.render(number) for number, _ in documents]


class RenderRange:
    """One range a row."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "render")

    def __call__(self, ranges: list[Range]) -> list[list[Page]]:
        return [self._bodies.render(*each) for each in ranges]


class RenderPage(RenderRange):
    """One page a row: a range of one."""

    def __call__(self, ranges: list[Range]) -> list[Any]:
        return [next(self._bodies.rendered(*each)) for each in ranges]


class Read:
    """One page a row; the order of a document's texts is the runtime's affair."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "read")

    def __call__(self, pages: list[Page]) -> list[Any]:
        texts: list[Any] = self._bodies.read(pages)
        if not self._bodies.workload.poison:
            return texts
        return [
            GroupFailure("Poison", "a page that spoils its document") if spoilt else text
            for text, spoilt in zip(texts, map(self._bodies.is_poison, pages), strict=True)
        ]


class ReadDocument(Read):
    """One document a row: its pages are read batch by batch, and with no other's."""

    def __call__(self, documents: list[Any]) -> list[Any]:
        size = self._bodies.workload.batch
        read = super().__call__
        return [
            [
                text
                for first in range(0, len(pages), size)
                for text in read(pages[first : first + size])
            ]
            for pages in (flat(ranges) for ranges in documents)
        ]


class Assemble:
    """A document's texts, in one list or in one a range."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "assemble")

    def __call__(self, documents: list[tuple[int, int]], groups: list[Any]) -> list[Output]:
        outputs: list[Output] = []
        for (number, _), group in zip(documents, groups, strict=True):
            texts = flat(group)
            outputs.append(self._bodies.assemble(number, range(len(texts)), texts))
        return outputs


class Upload:
    """One output a row."""

    def __init__(self, job: Job) -> None:
        self._bodies = bodies(job, "upload")

    def __call__(self, outputs: list[Output]) -> list[Output]:
        return [self._bodies.upload(output) for output in outputs]


def flat(group: Sequence[Any]) -> list[Any]:
    """The members of a group, or of the groups in it."""
    members: list[Any] = []
    for member in group:
        members.extend(member if isinstance(member, list) else [member])
    return members


def used(cls: type, replicas: int, batch: int, *arguments: Any) -> Any:
    return stage(cls, replicas=replicas, batch_size=batch, num_cpus=NUM_CPUS)(*arguments)


def _shape_of(job: Job) -> str:
    if job.workload.kind != "none":
        return "pages"
    return "ranges" if job.workload.render_page_s else "whole"


def declared(job: Job, shape: str = "") -> Program:
    """`shape` is whole, ranges, pages or document (the ablation's whole document as one Grain)."""
    work, shape = job.workload, shape or _shape_of(job)
    cls = ReadDocument if shape == "document" else Read
    read = used(cls, work.read_workers, 1 if shape == "document" else work.batch, job)
    assemble = used(Assemble, work.assemble_workers, work.documents_a_call, job)
    upload = used(Upload, work.upload_workers, 1, job) if work.upload_workers else None

    def ended(document: Any, texts: Any) -> Any:
        output = assemble(document, texts)
        return upload(output) if upload else output

    return _SHAPES[shape](job, read, ended)


def _whole(job: Job, read: Any, ended: Callable[[Any, Any], Any]) -> Program:
    work = job.workload
    render = used(RenderWhole, work.render_workers, work.documents_a_call, job)

    @program(version="1")
    def whole(document: Any) -> Any:
        return ended(document, F.reduce(read(F.expand(render(document), domain="page"))))

    return whole


def ranges_of(
    job: Job, read: Any, ended: Callable[[Any, Any], Any], lists: type = ListRanges
) -> Program:
    """document -> ranges of a batch -> pages -> document; `lists` is the stage that lists ranges,
    `ended` what is made of a document and its texts."""
    work = job.workload
    listed = used(lists, 1, 16, work.batch)
    render = used(RenderRange, work.render_workers, 1, job)

    @program(version="1")
    def ranges(document: Any) -> Any:
        rendered = render(F.expand(listed(document), domain="range"))
        texts = read(F.expand(rendered, domain="page"))
        return ended(document, F.reduce(F.reduce(texts)))

    return ranges


def _pages(job: Job, read: Any, ended: Callable[[Any, Any], Any]) -> Program:
    work = job.workload
    listed = used(ListRanges, 1, 16, 1)
    render = used(RenderPage, work.render_workers, work.batch, job)

    @program(version="1")
    def pages(document: Any) -> Any:
        texts = read(render(F.expand(listed(document), domain="page")))
        return ended(document, F.reduce(texts))

    return pages


def _document(job: Job, read: Any, ended: Callable[[Any, Any], Any]) -> Program:
    work = job.workload
    listed = used(ListRanges, 1, 16, work.batch)
    render = used(RenderRange, work.render_workers, 1, job)

    @program(version="1")
    def document(source: Any) -> Any:
        rendered = render(F.expand(listed(source), domain="range"))
        return ended(source, read(F.reduce(rendered)))

    return document


_SHAPES = {"whole": _whole, "ranges": ranges_of, "pages": _pages, "document": _document}


def run(job: Job, ray_folder: str, shape: str = "", **options: Any) -> dict[str, Any]:
    """Options other than `shape` go to the Engine."""
    own = OwnRay(job.workload, ray_folder)
    rows = [(document.number, document.pages) for document in job.workload.documents]
    measuring = Measuring(job)
    with Engine(declared(job, shape), **options) as engine:
        outputs = [
            parent.value()
            for parent in engine.run(rows)
            if parent.outcome is ParentOutcome.COMPLETED
        ]
        return measuring.ended(outputs, **own.store())
