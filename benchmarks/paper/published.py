"""The figures of the RayOrch paper (2026-09) that are held against ours."""

from __future__ import annotations

HOUR = 3600.0

# MinerU: documents, valid pages, most pages of one.
MINERU = (3_689, 174_744, 427)
# Videos, clips.
VIDEO = (27_091, 104_952)

# Strong scaling, hours.
MINERU_4, MINERU_64, MINERU_TIMES = 15.26, 1.01, 15.14
VIDEO_8, VIDEO_64, VIDEO_TIMES = 3.32, 0.42, 7.82

# End to end on 64 GPUs, cold, seconds.
END_TO_END = {"RayOrch": 4295.7, "Ray Data": 4945.8, "Daft": 6048.5, "MinerU itself": 8874.5}

# The ablation, seconds.
ABLATION = {"whole documents": 818.0, "pages re-batched": 634.1, "FIFO": 579.3}

# The failure experiment: 50 ms a page on 4 workers, page 0 of the 99 largest documents fails.
FAILURE_DOCUMENTS, FAILURE_PAGES, POISONED = 1_885, 45_507, 99
POISONED_PAGES = 23_613
SUPPRESSED, SUPPRESSED_SHARE, WALL_SAVED = 6_241, 0.265, 0.1493
