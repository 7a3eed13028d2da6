"""What workers may ask for and nobody else shall see: an actor that keeps it in its memory.

Ray stores the arguments of an actor's constructor, shows a runtime_env, and may write values that
were put to its disk. So the keeper is made empty and told by a call, and it answers by calls: those
go from process to process. It ends with the driver, however that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rayorch_prefect.errors import ClusterError


class Keeper:
    """Keeps values by name."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}

    def keep(self, kept: Mapping[str, Any]) -> None:
        self._kept.update(kept)

    def give(self, name: str) -> Any:
        return self._kept[name]


@contextmanager
def keeping(keeper: str, kept: Mapping[str, Any]) -> Iterator[None]:
    """Let this job's processes ask `given(keeper, name)` inside. Raises ClusterError.

    The keeper lives on the driver's node: it is lost only with the driver.
    """
    here = ray.get_runtime_context().get_node_id()
    options = ray.remote(Keeper).options(
        name=keeper,
        num_cpus=0,
        max_restarts=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    actor: Any = options.remote()
    try:
        try:
            ray.get(actor.keep.remote(dict(kept)))
        except RayError as error:
            raise ClusterError(
                f"the actor that keeps the credentials did not start: {type(error).__name__}"
            ) from None
        yield
    finally:
        ray.kill(actor)


def given(keeper: str, name: str) -> Any:
    """What the keeper of this name keeps under `name`. Raises ClusterError if it is not there."""
    try:
        return ray.get(ray.get_actor(keeper).give.remote(name))
    except (RayError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"the keeper of {name} does not answer: {type(error).__name__}"
        ) from None
