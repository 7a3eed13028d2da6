"""A Ray of this process alone, for demos and trials."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rayorch_prefect.errors import ClusterError
from rayorch_prefect.execution import full_disk
from rayorch_prefect.execution.cluster import own_sigterm


@contextmanager
def private_ray(num_cpus: int, object_store_bytes: int) -> Iterator[str]:
    """A new local Ray with so many logical CPUs, whatever RAY_ADDRESS says; its GCS address.

    Engines entered inside use it; it is shut down at the end. What its workers print stays in
    Ray's own session folder. Raises ClusterError if it does not start.
    """
    with own_sigterm():
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except (OSError, RuntimeError, ValueError) as error:
            full = full_disk.among(*full_disk.temporary_folders())
            raise ClusterError(f"no local Ray could be started: {error}{full}") from error
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()
