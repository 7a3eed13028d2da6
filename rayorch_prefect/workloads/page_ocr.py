"""Pages without a text layer: rendered by pdfium under a pixel cap, read by rapidocr.

The models are those in rapidocr's wheel; nothing is downloaded.
"""

from __future__ import annotations

import math
import os
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2 as pdfium
from numpy.typing import NDArray

from rayorch_prefect import RecordFailure
from rayorch_prefect.workloads.pdf_text import (
    OpenPdf,
    Page,
    Rendering,
    address_space_limit,
    clean_text,
)

POINTS_PER_INCH = 72
DPI = 144
# An A2 page at 144 dpi just fits; reading such an image takes about 1.5 GB.
MAX_PIXELS = 9_000_000
MAX_SIDE = 8192

Image = NDArray[np.uint8]


def rendering_of(width: float, height: float) -> Rendering:
    """At how many dots an inch a page of this size (points) is rendered: 144, or what the cap
    of 9 million pixels and 8192 pixels a side allows. Raises ValueError for a page of no area."""
    if not (0 < width < math.inf and 0 < height < math.inf):
        raise ValueError(f"a page of {width} x {height} points has no area to render")
    wanted = DPI / POINTS_PER_INCH
    area = math.sqrt(MAX_PIXELS) / math.sqrt(width) / math.sqrt(height)
    scale = min(wanted, area, MAX_SIDE / max(width, height))
    return Rendering(dpi=float(f"{scale * POINTS_PER_INCH:.4g}"), capped=scale < wanted)


def render_page(document: OpenPdf, ordinal: int, memory_mib: int = 2048) -> tuple[Image, Rendering]:
    """One page as pixels (rows x columns x BGR) on white, and how it was rendered.

    Raises RecordFailure `UnrenderablePage`.
    """
    try:
        with address_space_limit(memory_mib), closing(document.page(ordinal)) as page:
            rendering = rendering_of(*page.get_size())
            with closing(page.render(scale=rendering["dpi"] / POINTS_PER_INCH)) as bitmap:
                return np.array(bitmap.to_numpy()), rendering
    except (pdfium.PdfiumError, MemoryError, ValueError) as error:
        what = f"page {ordinal + 1} of {document.name} has no text layer and cannot be rendered"
        reason = str(error) or "it takes too much memory"
        raise RecordFailure("UnrenderablePage", f"{what}: {reason}") from error


def is_blank(image: Image) -> bool:
    """Whether all pixels are the same."""
    return bool((image == image[0, 0]).all())


class Recognizer:
    """Text in images. The models are loaded with the first image that is not blank.

    `threads` defaults to OMP_NUM_THREADS, which Ray sets to the CPUs of the stage, else to 1.
    """

    def __init__(self, threads: int | None = None) -> None:
        self.threads = threads or int(os.environ.get("OMP_NUM_THREADS", "1"))

    def __call__(self, image: Image) -> str:
        """A line for each piece of text found, from the top down; empty if there is none."""
        if is_blank(image):
            return ""
        return clean_text("\n".join(self._engine(image).txts or ()))

    @cached_property
    def _engine(self) -> Any:
        # Imported late: a worker that meets no scan pays neither the second nor the memory.
        import cv2
        from rapidocr import RapidOCR

        cv2.setNumThreads(self.threads)
        return RapidOCR(params=_settings(self.threads))


def _settings(threads: int) -> dict[str, Any]:
    return {
        "Global.log_level": "error",
        # Turning pieces by what the classifier thinks garbles crisp scans.
        "Global.use_cls": False,
        # The cap of the rendering holds; a second one would blur large pages.
        "Global.max_side_len": MAX_SIDE,
        # By default short sides are enlarged, a strip of a page to any number of pixels.
        "Det.limit_type": "max",
        "Det.limit_side_len": MAX_SIDE,
        # What the detector was trained with: by rapidocr's own 0.5 it misses all text of a page
        # that has only a line or two.
        "Det.mean": [0.485, 0.456, 0.406],
        "Det.std": [0.229, 0.224, 0.225],
        "Det.model_path": str(_model("det")),
        "Rec.model_path": str(_model("rec")),
        "EngineConfig.onnxruntime.intra_op_num_threads": threads,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }


def _model(task: str) -> Path:
    """The one model for the task in rapidocr's wheel. Named, it is never looked up elsewhere."""
    import rapidocr

    folder = Path(rapidocr.__file__).parent / "models"
    found = sorted(folder.glob(f"*_{task}_*.onnx"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"expected one {task} model in {folder}, found {len(found)}; install rapidocr again"
        )
    return found[0]


def read_scan(document: OpenPdf, page: Page, recognize: Recognizer, memory_mib: int = 2048) -> Page:
    """The page with the text that is seen on it; raises RecordFailure `UnrenderablePage`."""
    image, rendering = render_page(document, page["ordinal"], memory_mib)
    return Page(**{**page, "text": recognize(image), "text_from": "ocr", "rendering": rendering})
