"""How a location's store is reached where that is not left to boto3's own chain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client of boto3 is made with; None is left to boto3's chain."""

    endpoint_url: str | None = None
    region_name: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody may read."""
        return tuple(each for each in (self.secret_access_key, self.session_token) if each)

    def arguments(self) -> dict[str, Any]:
        """The arguments of `Session.client`."""
        asked = {
            "endpoint_url": self.endpoint_url,
            "region_name": self.region_name,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
        }
        return {name: value for name, value in asked.items() if value}


class Access(Protocol):
    """Stands for client settings without holding them: small, hashable, picklable.

    It lies in locations and sources, which go to workers and may be shown.
    """

    def settings(self) -> ClientSettings:
        """Raises StoreUnavailable if they are not to be had now."""
        ...
