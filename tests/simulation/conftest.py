"""The local Ray that the real runs share."""

from tests.services import ray_cluster

__all__ = ["ray_cluster"]
