"""Nested Domains and the library without Prefect: documents have pages, pages have regions.

python -m examples.regions

mypy does not see what a class decorator makes of a class, so a program whose stages carry types
uses `stage(Layout, ...)` where the class is used.
"""

from __future__ import annotations

from typing import Any

from rayorch_prefect import Engine, F, Parent, ParentOutcome, RecordFailure, program, stage

Box = tuple[int, int]


def pages(document: dict[str, Any]) -> list[list[int]]:
    """A document's pages, each a list of the widths of its regions."""
    if document.get("locked"):
        raise RecordFailure("Locked", "needs a key")
    return list(document["pages"])


class Layout:
    """Where the regions of a page begin and end."""

    def __call__(self, pages: list[list[int]]) -> list[list[Box]]:
        return [[(sum(page[:i]), sum(page[: i + 1])) for i in range(len(page))] for page in pages]


class Describe:
    """One text a region. A batch may hold regions of several documents."""

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def __call__(self, regions: list[Box], documents: list[dict[str, Any]]) -> list[str]:
        pairs = zip(regions, documents, strict=True)
        return [f"{document['name']} {a}-{b} {self.unit}" for (a, b), document in pairs]


@program(version="1")
def regions(document: Any) -> Any:
    """The texts of a document's regions, page by page, in order."""
    page = F.expand(stage(pages)(document), domain="page")
    region = F.expand(stage(Layout, batch_size=8)()(page), domain="region")
    describe = stage(Describe, batch_size=32, replicas=2)("mm")
    texts = describe(region, F.broadcast(document, like=region))
    return F.reduce(F.reduce(texts))


ROWS: list[dict[str, Any]] = [
    {"name": "long", "pages": [[10, 20], [], [5, 5, 5]]},
    {"name": "locked", "locked": True},
    {"name": "short", "pages": [[30]]},
]


def shown(parent: Parent) -> str:
    """A parent's end on one line."""
    name = parent.row["name"]
    if parent.outcome is not ParentOutcome.COMPLETED:
        return f"{name}: {parent.cause}"
    return f"{name}: {parent.value()}"


def main() -> None:
    """Print each document the moment it is complete; the order is that of completion."""
    with Engine(regions) as engine:
        for parent in engine.run(ROWS):
            print(shown(parent), flush=True)


if __name__ == "__main__":
    main()
