"""A stage's set-up of a node: once, however many workers start there together."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import cloudpickle
import ray

from rayorch_prefect.errors import StageError
from rayorch_prefect.execution.in_use import hold, sweep
from rayorch_prefect.program.targets import StageTarget


@dataclass(frozen=True, slots=True)
class NodeSetup:
    """The function, and what tells its runs apart from those of other stages."""

    target: StageTarget
    key: str

    @staticmethod
    def of(stage: str, target: StageTarget | None) -> NodeSetup | None:
        """The set-up of a stage; None if it has none."""
        if target is None:
            return None
        return NodeSetup(target, sha256(cloudpickle.dumps((stage, target))).hexdigest()[:32])

    def run_once(self) -> None:
        """Call it, unless another worker of this node has done so in this Ray job.

        The others wait meanwhile. One that raises, or dies, leaves it to the next to start.
        """
        place = _folder() / self.key
        with _locked(place.with_suffix(".lock")):
            done = place.with_suffix(".done")
            if not done.exists():
                self.target.resolve()()
                done.touch()


def _folder() -> Path:
    """Of this session, job and node, which several nodes of a test share a machine for.

    This process keeps it from now on; those that nobody keeps are swept.
    """
    here = ray.get_runtime_context()
    root = Path(tempfile.gettempdir()) / f"rayorch-prefect-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise StageError(f"{root} belongs to another user; remove it, or set TMPDIR for Ray")
    parts = here.get_session_name(), here.get_job_id(), here.get_node_id()
    folder = hold(root.joinpath(*parts))
    sweep(root)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # The kernel opens the lock of a worker that dies.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
