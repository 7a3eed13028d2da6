"""The services that the tests of the whole kind use, and a night to run on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.flows.nightly import nightly
from tests.services import Bucket, bucket, prefect_server, ray_cluster, s3_server

__all__ = ["bucket", "prefect_server", "ray_cluster", "s3_server"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A nightly run that is over, with all its task runs recorded."""

    state: State[Any]
    night: Night

    @property
    def message(self) -> str:
        return self.state.message or ""

    @property
    def outcomes(self) -> dict[str, str]:
        """Row outcome by source key."""
        return {row.source.key: row.outcome.value for row in self.night.rows if row}


RunNightly = Callable[..., Awaitable[Ended]]


@pytest.fixture
def run_nightly(bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str) -> RunNightly:
    """Run the nightly flow on the test's bucket; settings are the flow's parameters."""

    async def run(program: str = "tests.binding.programs:joined", **settings: Any) -> Ended:
        with watching() as nights:
            state = await flow_state(
                nightly, program, bucket.source, bucket.destination, **settings
            )
        assert state.is_cancelled() or wait_until_recorded(prefect_server, nights[0])
        return Ended(state, nights[0])

    return run
