"""A Program with every structure operation, and what it must give, in plain Python."""

from __future__ import annotations

from typing import Any

from rayorch_prefect import F, KeptFailure, Program, RecordFailure, program, stage


class Split:
    """Serves two Calls: sources to pages, and pages to regions."""

    def __call__(self, rows: list[Any]) -> list[list[Any]]:
        return [self.pages(row) if isinstance(row, dict) else self.regions(row) for row in rows]

    def pages(self, source: dict[str, Any]) -> list[Any]:
        return [(source["id"], i) for i in range(source["n"])]

    def regions(self, page: tuple[str, int]) -> list[Any]:
        return [(*page, j) for j in range(page[1] % 3)]


class Tag:
    def __call__(self, regions: list[Any], sources: list[dict[str, Any]]) -> list[str]:
        pairs = zip(regions, sources, strict=True)
        return ["{}/{}/{}".format(*region) + f" of {source['n']}" for region, source in pairs]


def odd(page: tuple[str, int]) -> bool:
    return page[1] % 2 == 1


def name(page: tuple[str, int]) -> str:
    return f"{page[0]}{page[1]}"


def words(source: dict[str, Any]) -> tuple[list[str], list[bool]]:
    n = source["n"]
    return [source["id"] * i for i in range(n)], [i % 3 != 0 for i in range(n)]


def checked(page: tuple[str, int]) -> int:
    if page[1] == 3:
        raise RecordFailure("Three", f"{page[0]} has a page 3")
    return page[1]


class Whole:
    def __call__(self, *columns: list[Any]) -> list[Any]:
        return [
            (source["id"], *parts[:-2], parts[-2], parts[-2].missing, parts[-1])
            for source, *parts in zip(*columns, strict=True)
        ]


def everything(batch_size: int) -> Program:
    """Expands nested and side by side, all reduces, filter, coalesce, broadcast; three outputs.

    Its budget of tries is more than any schedule of these tests uses up.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "retry_budget": 20}

    @program
    def everything(source: Any) -> Any:
        split = stage(Split, **options)()
        pages = F.expand(split(source), domain="page")
        regions = F.expand(split(pages), domain="region")
        whose = F.broadcast(source, like=regions)
        tagged = stage(Tag, **options, replicas=2)()(regions, whose)
        is_odd = stage(odd, **options)(pages)
        names = stage(name, **options)(pages)
        fallback = F.coalesce(F.filter(pages, is_odd), names)
        pair = stage(words, **options, outputs=2)(source)
        word, keep = F.expand_aligned(*pair, domain="word")
        kept_words, kept_marks = F.reduce_aligned(F.filter(word, keep), keep)
        good = stage(checked, **options)(pages)
        whole = stage(Whole, **options)()(
            source,
            F.reduce(F.reduce(tagged)),
            F.reduce(fallback),
            kept_words,
            kept_marks,
            F.reduce(good, on_failure="skip"),
            F.reduce(good, on_failure="keep"),
        )
        return whole, tagged, F.filter(pages, is_odd)

    return everything


def expected(source: dict[str, Any]) -> Any:
    """What `everything` gives for a source: its outputs."""
    which, n = source["id"], source["n"]
    regions = [[f"{which}/{i}/{j} of {n}" for j in range(i % 3)] for i in range(n)]
    pages = [(which, i) for i in range(n)]
    whole = (
        which,
        regions,
        [(which, i) if i % 2 else f"{which}{i}" for i in range(n)],
        [which * i for i in range(n) if i % 3],
        [True for i in range(n) if i % 3],
        [i for i in range(n) if i != 3],
        (3,) if n > 3 else (),
        ["gap" if i == 3 else i for i in range(n)],
    )
    return whole, regions, [page for page in pages if page[1] % 2]


def shown(outputs: Any) -> Any:
    """Outputs with kept failures as "gap", after a look at what they say."""
    (*parts, kept), *below = outputs
    for one in kept:
        if isinstance(one, KeptFailure):
            assert (one.kind.value, one.path) == ("RecordFailure", (3,))
    kept = ["gap" if isinstance(one, KeptFailure) else one for one in kept]
    return ((*parts, kept), *below)


ROWS: list[dict[str, Any]] = [
    {"id": chr(ord("a") + k), "n": n} for k, n in enumerate([7, 0, 1, 4, 13, 3, 30, 2])
]
