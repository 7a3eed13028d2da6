"""A Prefect concurrency limit of 1 as a lock, for stores that honour no conditional writes.

The server frees a slot some time after its holder has stopped renewing it. But a server that was
started anew may have forgotten who holds its slots and never free them: then the lease in the
store says whether somebody is at work, and the limit is made anew.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from rayorch_prefect.errors import ClusterError
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.keys import escape_segment

SLOT_SECONDS = 60.0
"""How long a slot lasts without a renewal; Prefect takes no shorter time."""

_LOCKED = 423


class SlotUnavailable(ClusterError):
    """The Prefect API gives no concurrency limits."""


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of a limit, held under a Prefect lease."""

    limit: str
    lease: UUID


def limit_name(destination: S3Location, program: str) -> str:
    """The limit of one (destination, program)."""
    digest = sha256(f"{destination} {program}".encode()).hexdigest()[:12]
    return f"rayorch-prefect {escape_segment(program)} {digest}"


def take_slot(name: str, run_id: str) -> Slot | str:
    """The slot of the limit of this name, made if need be; the limit's id if the slot is held.

    Raises SlotUnavailable.
    """
    try:
        with get_client(sync_client=True) as client:
            limit = _limit(client, name)
            lease = _lease(client, name, run_id)
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise SlotUnavailable(f"the Prefect API gives no concurrency slot: {error}") from error
    return limit if lease is None else Slot(name, lease)


def renew_slot(slot: Slot) -> bool:
    """Keep it for SLOT_SECONDS more; False if the server does not know it any more.

    Raises httpx.HTTPError.
    """
    try:
        with get_client(sync_client=True) as client:
            client.renew_concurrency_lease(slot.lease, SLOT_SECONDS)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (httpx.codes.GONE, httpx.codes.NOT_FOUND):
            return False
        raise
    return True


def release_slot(slot: Slot) -> None:
    """Raises httpx.HTTPError."""
    with get_client(sync_client=True) as client:
        client.release_concurrency_slots_with_lease(slot.lease)


def drop_limit(limit: str) -> None:
    """Remove a limit whose slot is held by nobody; the next `take_slot` makes another.

    By its id: of two runs that do this, the later removes nothing.
    """
    with suppress(ObjectNotFound), get_client(sync_client=True) as client:
        client.delete_global_concurrency_limit_by_name(limit)


def _lease(client: SyncPrefectClient, name: str, run_id: str) -> UUID | None:
    """The lease of the one slot; None if it is held, or the limit has just gone."""
    holder = ConcurrencyLeaseHolder(type="flow_run", id=UUID(run_id))
    try:
        answer = client.increment_concurrency_slots_with_lease(
            [name], 1, "concurrency", SLOT_SECONDS, holder
        )
    except httpx.HTTPStatusError as error:
        if error.response.status_code == _LOCKED:
            return None
        raise
    found = answer.json()
    return UUID(found["lease_id"]) if found["limits"] else None


def _limit(client: SyncPrefectClient, name: str) -> str:
    with suppress(ObjectNotFound):
        return str(client.read_global_concurrency_limit_by_name(name).id)
    with suppress(ObjectAlreadyExists, httpx.HTTPStatusError):
        return str(client.create_global_concurrency_limit(_asked(name)))
    return str(client.read_global_concurrency_limit_by_name(name).id)


def _asked(name: str) -> GlobalConcurrencyLimitCreate:
    return GlobalConcurrencyLimitCreate(name=name, limit=1)
