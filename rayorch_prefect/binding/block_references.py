"""From what an argument says to the place or cluster: an address, a block, or a block's name.

`s3-location/NAME` and `ray-cluster/NAME` name saved blocks, as Prefect writes them. What is kept of
a block in parameters, commands and messages is this name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast

import httpx
from prefect.blocks.core import Block

from rayorch_prefect.binding.block_access import BlockAccess
from rayorch_prefect.binding.prefect_server import ServerNotReached
from rayorch_prefect.blocks import RayCluster
from rayorch_prefect.blocks import S3Location as LocationBlock
from rayorch_prefect.errors import UsageError
from rayorch_prefect.storage import ClientSettings, S3Location
from rayorch_prefect.storage.redaction import without_secrets

Place: TypeAlias = str | LocationBlock
Cluster: TypeAlias = str | RayCluster

B = TypeVar("B", bound=Block)


def names_block(asked: object) -> bool:
    """Whether it is the name of a block of ours, so that Prefect has to be asked."""
    slugs = (LocationBlock.get_block_type_slug(), RayCluster.get_block_type_slug())
    return isinstance(asked, str) and asked.startswith(tuple(f"{slug}/" for slug in slugs))


def located(asked: Place, argument: str, keeper: str) -> S3Location:
    """The place that `argument` names; that of a block is reached as the block says.

    `keeper` is the night's, for its workers. Raises UsageError for what is no place or no block,
    ServerNotReached.
    """
    if not isinstance(asked, LocationBlock):
        if not names_block(asked):
            return S3Location.parse(asked)
        asked = _loaded(LocationBlock, asked, argument)
    place, settings = S3Location.parse(asked.get_url()), asked.get_client_settings()
    if settings == ClientSettings():
        return place
    access = BlockAccess(reference(asked) or f"{argument}, not saved", keeper)
    access.hold(settings)
    return replace(place, access=access)


def cluster(asked: Cluster | None) -> tuple[str | None, dict[str, Any]]:
    """The address and the runtime_env. Raises UsageError, ServerNotReached."""
    if asked is None or (isinstance(asked, str) and not names_block(asked)):
        return asked, {}
    block = asked if isinstance(asked, RayCluster) else _loaded(RayCluster, asked, "ray_address")
    return block.get_address(), block.get_runtime_env()


def reference(asked: object) -> str:
    """The name to ask for the same block again; empty for other values and blocks not saved."""
    if names_block(asked):
        return str(asked)
    if isinstance(asked, LocationBlock | RayCluster) and asked._block_document_name:
        return f"{asked.get_block_type_slug()}/{asked._block_document_name}"
    return ""


def _loaded(kind: type[B], asked: str, argument: str) -> B:
    slug, _, name = asked.partition("/")
    if slug != kind.get_block_type_slug():
        raise UsageError(f"{argument} is {asked!r}; expected {kind.get_block_type_slug()}/NAME")
    try:
        # Not awaited: a flow's settings are read before its loop has anything else to do.
        return cast(B, cast(Any, kind).load(name, _sync=True))
    except ValueError as error:
        raise UsageError(
            f"{argument} is {asked!r}, and there is no such block that will do: "
            f"{without_secrets(str(error))}; `prefect block ls` lists those there are"
        ) from None
    except httpx.HTTPError as error:
        raise ServerNotReached(
            f"{argument} is {asked!r}, and Prefect could not be asked for that block: "
            f"{without_secrets(str(error))}"
        ) from error
