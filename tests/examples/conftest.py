"""The services that the examples run on."""

from tests.services import bucket, prefect_server, ray_cluster, s3_server

__all__ = ["bucket", "prefect_server", "ray_cluster", "s3_server"]
