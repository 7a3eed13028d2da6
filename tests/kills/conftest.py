"""The services of the whole kind."""

from __future__ import annotations

from tests.services import bucket, prefect_server, ray_cluster, s3_server

__all__ = ["bucket", "prefect_server", "ray_cluster", "s3_server"]
