"""The local Ray that the real runs share."""

from tests.services import ray_cluster, s3_server

__all__ = ["ray_cluster", "s3_server"]
