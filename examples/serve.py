"""The nightly job without a work pool: this process waits for two o'clock and runs it.

    export RAYORCH_SOURCE=s3://my-bucket/in/ RAYORCH_DESTINATION=s3://my-bucket/out/
    python examples/serve.py

`prefect.yaml` at the repository's root does the same with a work pool and a worker.
"""

from __future__ import annotations

import os

from prefect import serve
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.schedules import Cron

from rayorch_prefect.flows.nightly import nightly

PROGRAM = "rayorch_prefect.workloads.documents:documents"


def nightly_deployment(source: str, destination: str) -> RunnerDeployment:
    """Every night at two; a run that would start while another one is running is cancelled."""
    made = nightly.to_deployment(
        name="served",
        schedule=Cron("0 2 * * *", timezone="Europe/Berlin"),
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW
        ),
        parameters={"program": PROGRAM, "source": source, "destination": destination},
    )
    assert isinstance(made, RunnerDeployment)
    return made


if __name__ == "__main__":
    serve(nightly_deployment(os.environ["RAYORCH_SOURCE"], os.environ["RAYORCH_DESTINATION"]))
