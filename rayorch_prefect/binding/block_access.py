"""The client settings of a block, where a night's processes find them; imports no Prefect.

The process of the flow has them from Prefect, and lets the workers ask for them: they need neither
a way to Prefect's API nor a key to it. What goes to workers by name is only a `BlockAccess`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rayorch_prefect.errors import ClusterError, StoreUnavailable
from rayorch_prefect.execution.keeper import given, keeping
from rayorch_prefect.storage import ClientSettings, S3Location
from rayorch_prefect.storage.redaction import hide

_held: dict[BlockAccess, ClientSettings] = {}


@dataclass(frozen=True, slots=True)
class BlockAccess:
    """Stands for the settings of the block `name`, as they were read for the night of `keeper`."""

    name: str
    keeper: str

    def settings(self) -> ClientSettings:
        """Raises StoreUnavailable if the flow's process does not give them."""
        if self not in _held:
            try:
                found: ClientSettings = given(self.keeper, self.name)
            except ClusterError as error:
                raise StoreUnavailable(
                    f"the credentials of block {self.name} are not to be had here: {error}"
                ) from None
            self.hold(found)
        return _held[self]

    def hold(self, settings: ClientSettings) -> None:
        """Let this process have them, and show them to nobody."""
        for secret in settings.secrets:
            hide(secret)
        _held[self] = settings


@asynccontextmanager
async def given_to_workers(*locations: S3Location) -> AsyncIterator[None]:
    """Let workers ask for the settings of these locations' blocks inside. Raises ClusterError."""
    blocks = {each.access for each in locations if isinstance(each.access, BlockAccess)}
    if not blocks:
        yield
        return
    kept = keeping(next(iter(blocks)).keeper, {each.name: each.settings() for each in blocks})
    await asyncio.to_thread(kept.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(kept.__exit__, None, None, None)
