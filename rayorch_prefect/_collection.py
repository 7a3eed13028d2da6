"""The module that the `prefect.collections` entry point names.

Every Prefect server start loads it, and whoever looks for a block's class by its slug: so it must
stay light and imports Prefect alone, which is there already. `rayorch_prefect/__init__.py` imports
not even that.
"""

from rayorch_prefect.blocks import RayCluster, S3Location

__all__ = ["RayCluster", "S3Location"]
