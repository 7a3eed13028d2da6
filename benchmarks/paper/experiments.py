"""The paper's experiments at its scale, simulated. Each gives rows for docs/paper.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.paper import corpora, published
from benchmarks.paper.published import HOUR
from rayorch_prefect.simulation.chain import Chain, Level, Stage
from rayorch_prefect.simulation.conditions import ON_RAY
from rayorch_prefect.simulation.figures import Figures
from rayorch_prefect.simulation.load import Load, Page
from rayorch_prefect.simulation.simulate import Shape, simulate


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what the paper has, what the simulator has. `key` finds what was measured here."""

    what: str
    published: str
    simulated: str
    key: str = ""


# Not in the paper: its batch size of the failure experiment is taken for OCR, too; the stages
# around OCR are given what makes none of them the busiest.
BATCH = 48
RENDER = Stage("render", Level.DOCUMENT, 1, 32, child_s=0.02)
ASSEMBLE = Stage("assemble", Level.DOCUMENT, 1, 16, row_s=0.5)
UPLOAD = Stage("upload", Level.DOCUMENT, 1, 16, row_s=0.5)


def _mineru_chain(workers: int, row_s: float) -> Chain:
    ocr = Stage("ocr", Level.PAGE, BATCH, workers, row_s=row_s)
    return Chain.of([RENDER, ocr, ASSEMBLE, UPLOAD])


def _run(chain: Chain, load: Load, shape: Shape = Shape.LINEAGE, policy: str = "fifo") -> Figures:
    return simulate(chain, load, shape, replace(ON_RAY, policy=policy)).figures


@cache
def mineru_row_s() -> float:
    """Seconds of a GPU a page: what makes the run on 4 GPUs take the published 15.26 h."""
    return _calibrated(_mineru_chain, corpora.mineru(), 4, published.MINERU_4 * HOUR)


def _calibrated(
    chain_of: Callable[[int, float], Chain], load: Load, workers: int, wall_s: float
) -> float:
    """Walls grow with the cost of a row, but for what hides behind it: two steps are enough."""
    row_s = wall_s * workers / load.pages
    for _ in range(2):
        row_s *= wall_s / _run(chain_of(workers, row_s), load).wall_s
    return row_s


@cache
def _mineru(workers: int, shape: Shape = Shape.LINEAGE, policy: str = "fifo") -> Figures:
    return _run(_mineru_chain(workers, mineru_row_s()), corpora.mineru(), shape, policy)


def scaling() -> list[Row]:
    """From 4 to 64 GPUs, and from 8 to 64."""
    four = _mineru(4).wall_s
    rows = [
        Row("MinerU, 4 GPUs", f"{published.MINERU_4} h", "calibrated on it"),
        *(
            Row(f"MinerU, {n} GPUs", "-", _scaled(four, _mineru(n).wall_s, n / 4))
            for n in (8, 16, 32)
        ),
        Row(
            "MinerU, 64 GPUs",
            _told(published.MINERU_64, published.MINERU_TIMES, 16),
            _scaled(four, _mineru(64).wall_s, 16),
            "scaling",
        ),
    ]
    load = corpora.videos()
    row_s = _calibrated(_video_chain, load, 8, published.VIDEO_8 * HOUR)
    eight, many = (_run(_video_chain(n, row_s), load).wall_s for n in (8, 64))
    return [
        *rows,
        Row("video, 8 GPUs", f"{published.VIDEO_8} h", "calibrated on it"),
        Row(
            "video, 64 GPUs",
            _told(published.VIDEO_64, published.VIDEO_TIMES, 8),
            _scaled(eight, many, 8),
        ),
    ]


def _video_chain(workers: int, row_s: float) -> Chain:
    return Chain.of(
        [
            Stage("cut", Level.DOCUMENT, 8, 64, child_s=0.2),
            Stage("caption", Level.PAGE, 8, workers, row_s=row_s),
            Stage("join", Level.DOCUMENT, 16, 8, row_s=0.01),
        ]
    )


def _told(hours: float, times: float, ideal: float) -> str:
    return f"{hours} h, {times:.2f} x ({times / ideal:.1%})"


def _scaled(base_s: float, wall_s: float, ideal: float) -> str:
    return _told(round(wall_s / HOUR, 2), base_s / wall_s, ideal)


def comparison() -> list[Row]:
    """Shapes of the compared systems on 64 GPUs; a cold start, which all have, is left out."""
    ours = _mineru(64)
    alike = {
        "RayOrch": ours,
        "Ray Data": _mineru(64, Shape.GLOBAL_REGROUP),
        "MinerU itself": _mineru(64, Shape.WHOLE_DOCUMENT),
    }
    alike["Daft"] = alike["Ray Data"]
    base = published.END_TO_END["RayOrch"]
    return [
        Row(
            f"{system} ({alike[system].shape})",
            f"{wall:,.1f} s, {wall / base:.2f} x",
            f"{alike[system].wall_s:,.0f} s, {alike[system].wall_s / ours.wall_s:.2f} x, "
            f"{alike[system].tail_s:.0f} s after the last page",
            f"comparison/{system}",
        )
        for system, wall in published.END_TO_END.items()
    ]


def ablation() -> list[Row]:
    """Whole documents, then pages re-batched across documents, then in FIFO order."""
    runs = {
        "whole documents": _mineru(64, Shape.WHOLE_DOCUMENT),
        "pages re-batched": _mineru(64, policy="unordered"),
        "FIFO": _mineru(64),
    }
    first, wall = runs["whole documents"].wall_s, published.ABLATION["whole documents"]
    return [
        Row(
            step,
            f"{seconds} s, {seconds / wall:.3f} x",
            f"{runs[step].wall_s:,.0f} s, {runs[step].wall_s / first:.3f} x",
            f"ablation/{step}",
        )
        for step, seconds in published.ABLATION.items()
    ]


FAILURE = Chain.of(
    [
        Stage("render", Level.DOCUMENT, 8, 4),
        Stage("ocr", Level.PAGE, BATCH, 4, row_s=0.05),
        Stage("assemble", Level.DOCUMENT, 8, 4),
    ]
)


def failure() -> list[Row]:
    """Page 0 of the 99 largest documents fails as a group; nothing is calibrated here."""
    whole = {policy: _run(FAILURE, corpora.failure(None), policy=policy) for policy in _FAILURES}
    rows: list[Row] = []
    for page in Page:
        for policy in _FAILURES:
            found = _run(FAILURE, corpora.failure(page), policy=policy)
            saved = 1 - found.wall_s / whole["fifo"].wall_s
            rows.append(
                Row(
                    f"{page.value} page, {policy}",
                    _published_failure(page, policy),
                    f"{found.suppressed:,} ({found.suppressed_share:.1%}), {saved:.1%} of the wall",
                    f"failure/{page.value}/{policy}",
                )
            )
    slower = whole["canary"].wall_s / whole["fifo"].wall_s - 1
    rows.append(Row("no poison, canary", "-", f"{slower:+.2%} of the wall against fifo"))
    return rows


_FAILURES = ("fifo", "canary")


def _published_failure(page: Page, policy: str) -> str:
    if page is not Page.FIRST or policy != "fifo":
        return "-"
    share, saved = published.SUPPRESSED_SHARE, published.WALL_SAVED
    return f"{published.SUPPRESSED:,} ({share:.1%}), {saved:.1%} of the wall"


EXPERIMENTS: dict[str, Callable[[], list[Row]]] = {
    "comparison": comparison,
    "scaling": scaling,
    "ablation": ablation,
    "failure": failure,
}
