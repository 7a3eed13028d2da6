"""The process that runs a stage on Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import cloudpickle
import ray

from rayorch_prefect.execution.batch import run_batch
from rayorch_prefect.execution.messages import BatchMessage, CallContract, Reply
from rayorch_prefect.execution.stage_runner import FAULTS, StageRunner, StageSpec, short


class WorkerActor:
    """One worker of a pool. It is built by `build`, so that a failing constructor is an answer
    and not a death."""

    def __init__(self) -> None:
        self._runner: StageRunner | None = None
        self._contracts: Mapping[int, CallContract] = {}

    def build(
        self, spec: bytes, contracts: Mapping[int, CallContract], path: Sequence[str]
    ) -> tuple[str, str] | None:
        """Build the stage; (type, message) of what its constructor raised, or None."""
        import_from(path)
        self._contracts = contracts
        try:
            unpickled: StageSpec = cloudpickle.loads(spec)
            self._runner = StageRunner(unpickled)
        except FAULTS as error:
            return type(error).__name__, short(error)
        return None

    def run(self, message: BatchMessage) -> Any:
        """Run a batch: the reply, and after it the large returns where they were asked for."""
        reply, returns = self._run(message)
        return (reply, *returns) if message.large_returns else reply

    def _run(self, message: BatchMessage) -> tuple[Reply, Sequence[Any]]:
        assert self._runner is not None
        return run_batch(self._runner, self._contracts[message.call], message, fetch)

    def close(self) -> None:
        """Let the stage put away what it holds, and end."""
        if self._runner is not None:
            self._runner.close()
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


def fetch(refs: Sequence[Any]) -> Sequence[Any]:
    """Read stored objects from Ray."""
    found: Sequence[Any] = ray.get(list(refs))
    return found


def search_path() -> list[str]:
    """Where this process finds modules, as absolute folders."""
    return [os.path.abspath(folder) for folder in sys.path]


def import_from(path: Sequence[str]) -> None:
    """Find the driver's modules on nodes that share its folders."""
    known = set(sys.path)
    sys.path.extend(folder for folder in path if folder not in known and os.path.isdir(folder))
