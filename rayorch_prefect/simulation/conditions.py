"""How the simulated engine works: its scheduler's options and what messages cost."""

from __future__ import annotations

from dataclasses import dataclass

from rayorch_prefect.errors import UsageError


@dataclass(frozen=True, slots=True)
class Conditions:
    """`policy` reserves Grains; a worker holds up to `batches_at_worker`.

    In seconds: a message to a worker takes `send_s` and its report `report_s`; the driver, which
    does one thing at a time, takes `driver_batch_s` for a batch's report, `driver_row_s` for each
    of its rows and `driver_send_s` for a batch that it sends; a worker takes `start_s` before each
    call; a bar or a wish to have a batch back is with the worker after `control_s`.
    """

    policy: str = "fifo"
    batches_at_worker: int = 2
    send_s: float = 0.0
    report_s: float = 0.0
    driver_batch_s: float = 0.0
    driver_row_s: float = 0.0
    driver_send_s: float = 0.0
    start_s: float = 0.0
    control_s: float = 0.0

    def __post_init__(self) -> None:
        if self.batches_at_worker < 1:
            raise UsageError("a worker holds one batch at least")


IDEAL = Conditions()
# What our engine was measured to need on Ray, on one machine (benchmarks/predictions.py).
ON_RAY = Conditions(
    send_s=0.0006,
    report_s=0.0008,
    driver_batch_s=0.0003,
    driver_row_s=0.000005,
    driver_send_s=0.0003,
    start_s=0.0015,
    control_s=0.001,
)
