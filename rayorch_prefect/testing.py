"""For people who test their own Programs without a cluster.

`run_local(program, rows, seed=7, losses=0.1)` runs a Program in this process under a random
schedule that the seed fixes, with a tenth of the batches lost with their worker. Running it for
some seeds shows whether a Program's outputs depend on batches, order or deaths. With
`record="file"` the run can be looked at step by step afterwards: `Replay(Recording("file"))`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rayorch_prefect.execution.local import run_local
from rayorch_prefect.execution.parent import Parent
from rayorch_prefect.program.declare import Program
from rayorch_prefect.replay.recording import Recording
from rayorch_prefect.replay.replaying import Replay

__all__ = ["Recording", "Replay", "by_index", "run_local"]


def by_index(program: Program, rows: Iterable[Any], **schedule: Any) -> list[Parent]:
    """All parents in the order of their rows; `schedule` goes to `run_local`."""
    return sorted(run_local(program, rows, **schedule), key=lambda parent: parent.index)
