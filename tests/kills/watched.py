"""`documents` with stages and outputs that note where they begin, and wait there to be killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayorch_prefect import F, Program, program, stage
from rayorch_prefect.workloads.documents import (
    MAX_MISSING,
    Assemble,
    ReadPage,
    ReadScan,
    list_pages,
)
from rayorch_prefect.workloads.page_ocr import Recognizer
from tests.handed.conftest import eventually

BATCH = 4


@dataclass(frozen=True)
class Watch:
    """A file of lines `pid what`. What is `held` waits for its end when it begins first."""

    path: Path
    held: frozenset[str] = frozenset()

    def holding(self, *held: str) -> Watch:
        return replace(self, held=frozenset(held))

    def begin(self, what: str) -> None:
        """Note it, with one append, and wait if it is to be held."""
        first = what in self.held and what not in self.begun
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{os.getpid()} {what}\n".encode())
        os.close(descriptor)
        if first:
            signal.pause()

    @property
    def begun(self) -> Counter[str]:
        """How often each thing was begun."""
        return Counter(what for _, what in self._lines())

    def again(self, step: str) -> int:
        """How many beginnings of this step were not the first of their kind."""
        return sum(count - 1 for what, count in self.begun.items() if what.startswith(step))

    def kill(self, *whats: str) -> None:
        """Wait until all these were begun, then end their processes at once."""
        eventually(lambda: self.begun.keys() >= set(whats), 120.0)
        pids = {pid for pid, what in self._lines() if what in whats}
        assert len(pids) == len(whats), "each in a process of its own"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def _lines(self) -> list[tuple[int, str]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [(int(pid), what) for pid, what in (line.split(" ", 1) for line in lines)]


class WatchedReadPage(ReadPage):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __call__(self, source: Any, ordinal: int) -> Any:
        self.watch.begin(f"read {source.key}/{ordinal}")
        return super().__call__(source, ordinal)


class WatchedRecognizer(Recognizer):
    """Notes that OCR begins with a rendered page."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __call__(self, image: Any) -> str:
        self.watch.begin("ocr")
        return super().__call__(image)


class WatchedReadScan(ReadScan):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch
        self.recognize = WatchedRecognizer(watch)

    def __call__(self, source: Any, page: Any) -> Any:
        self.watch.begin(f"scan {source.key}/{page['ordinal']}")
        return super().__call__(source, page)


class Arriving:
    """An output that notes the process in which it becomes its value: the uploader's."""

    def __init__(self, value: dict[str, Any], watch: Watch, key: str) -> None:
        self.parts = (value, watch, key)

    def __reduce__(self) -> Any:
        return arrived, self.parts


def arrived(value: dict[str, Any], watch: Watch, key: str) -> dict[str, Any]:
    watch.begin(f"upload {key}")
    return value


class WatchedAssemble(Assemble):
    """With `padding` bytes more, so that the output goes in parts."""

    def __init__(self, watch: Watch, padding: int) -> None:
        self.watch = watch
        self.padding = padding

    def __call__(self, source: Any, pages: Any) -> Any:
        value = super().__call__(source, pages)
        if self.padding:
            value[".bin"] = source.key.encode() * self.padding
        return Arriving(value, self.watch, source.key)


def watched(watch: Watch, padding: int = 0) -> Program:
    """The graph of `documents`, its stages watched, with batches of BATCH pages."""
    common: Any = {"rowwise": True, "batch_size": BATCH, "replicas": 2, "num_cpus": 0.25}
    read_page = stage(WatchedReadPage, **common, outputs=3)(watch)
    read_scan = stage(WatchedReadScan, **common)(watch)
    whole = stage(WatchedAssemble, rowwise=True, num_cpus=0.25)(watch, padding)

    @program(version="1")
    def documents(source: Any) -> Any:
        ordinals = F.expand(list_pages()(source), domain="page")
        pages, has_text, has_none = read_page(F.broadcast(source, like=ordinals), ordinals)
        without_text = F.filter(pages, has_none)
        scans = read_scan(F.broadcast(source, like=without_text), without_text)
        read = F.coalesce(F.filter(pages, has_text), scans)
        return whole(source, F.reduce(read, on_failure="skip", max_missing=MAX_MISSING))

    return documents
