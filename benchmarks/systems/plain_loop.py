"""A loop by hand over plain Ray actors: no lineage, no recovery. It marks what Ray gives.

Small pages pass through the driver; large ones go from renderer to reader by reference, and the
loop keeps a share of the object store free by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import ray

from benchmarks.bodies import Output, Page, bodies
from benchmarks.calls import Job
from benchmarks.measured import Measuring
from benchmarks.own_ray import NUM_CPUS, OwnRay
from benchmarks.workloads import MIB, Document, Workload

SETTINGS = (
    "Two calls in flight an actor. Small pages: page ranges of one batch are rendered and full "
    "batches sent while more can come. Large pages: by reference, packed to full batches, while "
    "at most 60 % of the object store holds rendered ones."
)

Range = tuple[int, int, int]
STORE_SHARE = 0.6


class Actor:
    """One worker of any stage."""

    def __init__(self, job: Job, stage: str) -> None:
        self._bodies = bodies(job, stage)

    def render(self, ranges: list[Range]) -> list[Page]:
        return [page for each in ranges for page in self._bodies.rendered(*each)]

    def read(self, pages: list[Page]) -> list[str]:
        return self._bodies.read(pages)

    def read_named(self, pages: list[Page]) -> list[tuple[int, int, str]]:
        texts = self._bodies.read(pages)
        return [
            (page["document"], page["page"], text) for page, text in zip(pages, texts, strict=True)
        ]

    def assemble(self, documents: list[tuple[int, list[str]]]) -> list[Output]:
        return [
            self._bodies.assemble(number, range(len(texts)), texts) for number, texts in documents
        ]

    def upload(self, outputs: list[Output]) -> list[Output]:
        return [self._bodies.upload(output) for output in outputs]


class Pools:
    """The actors of all stages, each with `depth` places for calls."""

    def __init__(self, job: Job, depth: int) -> None:
        work = job.workload
        sizes = {
            "render": work.render_workers,
            "read": work.read_workers,
            "assemble": work.assemble_workers,
            "upload": work.upload_workers,
        }
        remote: Any = ray.remote(num_cpus=NUM_CPUS)(Actor)
        actors = {
            stage: [remote.remote(job, stage) for _ in range(n)] for stage, n in sizes.items()
        }
        ray.get([each.__ray_ready__.remote() for pool in actors.values() for each in pool])
        self._free = {
            stage: deque(each for _ in range(depth) for each in pool)
            for stage, pool in actors.items()
        }
        self._calls: dict[Any, tuple[str, Any, Any]] = {}
        self.busy = dict.fromkeys(sizes, 0)

    def has_place(self, stage: str) -> bool:
        """Whether a call can be sent."""
        return bool(self._free[stage])

    def send(self, stage: str, method: str, argument: Any, note: Any = None) -> None:
        """One call, to the actor that has waited longest; `note` comes back with its end."""
        actor = self._free[stage].popleft()
        self._calls[getattr(actor, method).remote(argument)] = (stage, actor, note)
        self.busy[stage] += 1

    def ends(self) -> Iterator[tuple[str, Any, Any]]:
        """(stage, reference of the result, note) as calls end, until none is in flight."""
        while self._calls:
            (ended,), _ = ray.wait(list(self._calls), num_returns=1, fetch_local=False)
            stage, actor, note = self._calls.pop(ended)
            self._free[stage].append(actor)
            self.busy[stage] -= 1
            yield stage, ended, note


class Texts:
    """The texts of documents that are not whole yet."""

    def __init__(self, documents: tuple[Document, ...]) -> None:
        self._texts: dict[int, list[str]] = {each.number: [""] * each.pages for each in documents}
        self._left = {each.number: each.pages for each in documents}

    def put(self, number: int, page: int, text: str) -> list[str] | None:
        """All texts of the document if this was its last."""
        self._texts[number][page] = text
        self._left[number] -= 1
        return None if self._left[number] else self._texts.pop(number)


class ThroughDriver:
    """For pages that cost no memory."""

    def __init__(self, workload: Workload, pools: Pools) -> None:
        self._pools, self._texts = pools, Texts(workload.documents)
        self._uploads = bool(workload.upload_workers)
        step = workload.batch if workload.render_page_s else 1 << 30
        ranges = (
            (each.number, first, min(each.pages, first + step))
            for each in workload.documents
            for first in range(0, each.pages, step)
        )
        self._queues: dict[str, deque[Any]] = {
            "render": deque(ranges),
            "read": deque(),
            "assemble": deque(),
            "upload": deque(),
        }
        calls = workload.documents_a_call
        rendered = 1 if workload.render_page_s else calls
        self._sizes = {
            "render": rendered,
            "read": workload.batch,
            "assemble": calls,
            "upload": 1,
        }
        self.outputs: list[Output] = []

    def send(self) -> None:
        """Fill every free place."""
        for stage, queue in self._queues.items():
            while queue and self._pools.has_place(stage) and not self._waits_for_more(stage):
                items = [queue.popleft() for _ in range(min(len(queue), self._sizes[stage]))]
                self._pools.send(stage, stage, items, items)

    def _waits_for_more(self, stage: str) -> bool:
        """A batch that is not full waits while readers have work and pages are still made."""
        makes = self._queues["render"] or self._pools.busy["render"]
        full = len(self._queues["read"]) >= self._sizes["read"]
        return stage == "read" and bool(makes and self._pools.busy["read"]) and not full

    def run(self) -> list[Output]:
        """Until all has been done."""
        self.send()
        for stage, ended, items in self._pools.ends():
            self._take(stage, ray.get(ended), items)
            self.send()
        return self.outputs

    def _take(self, stage: str, results: list[Any], items: list[Any]) -> None:
        if stage == "render":
            self._queues["read"].extend(results)
        elif stage == "read":
            for page, text in zip(items, results, strict=True):
                whole = self._texts.put(page["document"], page["page"], text)
                if whole is not None:
                    self._queues["assemble"].append((page["document"], whole))
        elif stage == "assemble" and self._uploads:
            self._queues["upload"].extend(results)
        else:
            self.outputs.extend(results)


class ByReference:
    """For pages that cost memory: the driver never sees one."""

    def __init__(self, workload: Workload, pools: Pools) -> None:
        self._pools, self._texts = pools, Texts(workload.documents)
        self._to_render = deque(packed(workload.documents, workload.batch))
        self._to_read: deque[Any] = deque()
        self._to_assemble: deque[tuple[int, list[str]]] = deque()
        batch_bytes = workload.page_bytes * workload.batch
        self._most_alive = max(2, int(STORE_SHARE * workload.store_mib * MIB / batch_bytes))
        self._alive = 0
        self.outputs: list[Output] = []

    def send(self) -> None:
        """Later stages first: they free memory."""
        while self._to_assemble and self._pools.has_place("assemble"):
            self._pools.send("assemble", "assemble", [self._to_assemble.popleft()])
        while self._to_read and self._pools.has_place("read"):
            self._pools.send("read", "read_named", self._to_read.popleft())
        while self._may_render():
            self._alive += 1
            self._pools.send("render", "render", self._to_render.popleft())

    def _may_render(self) -> bool:
        room = self._alive < self._most_alive
        return bool(self._to_render) and room and self._pools.has_place("render")

    def run(self) -> list[Output]:
        """Until all has been done."""
        self.send()
        for stage, ended, _ in self._pools.ends():
            if stage == "render":
                self._to_read.append(ended)
            elif stage == "read":
                self._alive -= 1
                self._took(ray.get(ended))
            else:
                self.outputs.extend(ray.get(ended))
            del ended
            self.send()
        return self.outputs

    def _took(self, read: list[tuple[int, int, str]]) -> None:
        for number, page, text in read:
            whole = self._texts.put(number, page, text)
            if whole is not None:
                self._to_assemble.append((number, whole))


def packed(documents: tuple[Document, ...], size: int) -> Iterator[list[Range]]:
    """Ranges of pages in the order of the documents, `size` pages a list; the last has fewer."""
    taken: list[Range] = []
    room = size
    for each in documents:
        first = 0
        while first < each.pages:
            end = min(each.pages, first + room)
            taken.append((each.number, first, end))
            room -= end - first
            first = end
            if not room:
                yield taken
                taken, room = [], size
    if taken:
        yield taken


def run(job: Job, ray_folder: str, depth: int = 2) -> dict[str, Any]:
    """`depth` calls in flight an actor."""
    own = OwnRay(job.workload, ray_folder)
    measuring = Measuring(job)
    pools = Pools(job, depth)
    loop = ThroughDriver if job.workload.kind == "none" else ByReference
    return measuring.ended(loop(job.workload, pools).run(), **own.store())
