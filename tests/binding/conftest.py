"""The services that the tests of the whole kind use, and a night to run on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.loading import load_program
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.binding.rows import Row
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.model.outcomes import Failure, Kind
from rayorch_prefect.storage import RowOutcome, S3Location, list_sources
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

JOINED = "tests.binding.programs:joined"


def recorded(bucket: Bucket, **ends: RowOutcome) -> None:
    """Let the ledger of `joined` say how sources of these names ended, as a run before would."""
    plan = load_program(JOINED).plan
    shelf = Shelf(S3Location.parse(bucket.destination), plan.name, plan.fingerprint)
    sources = {source.key: source for source in list_sources(S3Location.parse(bucket.source))}
    encrypted = Failure(Kind.RECORD_FAILURE, "Encrypted", "it is", "Split", "source")
    for name, outcome in ends.items():
        failure = encrypted if outcome is RowOutcome.FAILED else None
        shelf.record(Row(sources[f"in/{name}.json"], outcome, failure))


@pytest.fixture
def run_nightly(bucket: Bucket, prefect_server: PrefectServer, ray_cluster: str) -> RunNightly:
    """Run the nightly flow on the test's bucket; settings are the flow's parameters.

    One process uploads unless they say otherwise: each takes a second of a CPU to start.
    """

    async def run(program: str = JOINED, **settings: Any) -> Ended:
        places = {"source": bucket.source, "destination": bucket.destination}
        with watching() as nights:
            state = await flow_state(
                nightly, program, **{**places, "upload_workers": 1, **settings}
            )
        assert state.is_cancelled() or wait_until_recorded(prefect_server, nights[0])
        return Ended(state, nights[0])

    return run
