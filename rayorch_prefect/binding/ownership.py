"""A night owns its (destination, program) while it runs; who finds a dead owner closes its runs."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.states import Crashed

from rayorch_prefect.binding.slots import (
    Slot,
    SlotUnavailable,
    drop_limit,
    limit_name,
    release_slot,
    renew_slot,
    take_slot,
)
from rayorch_prefect.errors import LeaseLost, StoreError, UsageError
from rayorch_prefect.storage import S3Location
from rayorch_prefect.storage.lease import Lease, Watch, acquire, lease_file, owned
from rayorch_prefect.storage.lease_file import LeaseFile, LeaseRecord, clock
from rayorch_prefect.storage.owner import Owner

END_SECONDS = 5.0
"""How long the end of a night waits for the store to take that the lease is let go."""

_GRACE_SECONDS = 10.0
_POLL_SECONDS = 1.0
_PAGE = 200
_OPEN = [
    StateType.SCHEDULED,
    StateType.PENDING,
    StateType.RUNNING,
    StateType.PAUSED,
    StateType.CANCELLING,
]

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


@dataclass(frozen=True, slots=True)
class Claim:
    """What a run wants to own; `expires` is in seconds without a heartbeat.

    `conditional` says that the store honours conditional writes.
    """

    destination: S3Location
    program: str
    owner: Owner
    expires: float
    conditional: bool


@asynccontextmanager
async def owning(claim: Claim, on_lost: Callable[[LeaseLost], None]) -> AsyncIterator[Lease]:
    """Hold the lease inside; `on_lost` is called once, from another thread, if it is lost.

    An owner found dead has its flow runs closed as Crashed. Raises OwnedElsewhere, naming the
    owner; UsageError if neither the store nor the Prefect API can keep two runs apart; StoreError.
    """
    holding = await _taken(claim)
    log = get_run_logger()
    stop = threading.Event()
    context = contextvars.copy_context()
    beats = threading.Thread(
        target=context.run,
        args=(holding.beat, stop, on_lost, log),
        name="rayorch-lease",
        daemon=True,
    )
    beats.start()
    try:
        if holding.lease.taken_from is not None:
            await _close(holding.lease.taken_from, claim.owner, log)
        yield holding.lease
    finally:
        stop.set()
        ending = asyncio.ensure_future(asyncio.to_thread(_ended, holding, beats, log))
        # A store that does not answer must not hold up the end: the lease then expires by itself.
        await asyncio.wait([ending], timeout=END_SECONDS)


class _Stopped(Exception):
    """The run was cancelled while it waited for the lease."""


class _Pause:
    """Waits in a thread, until it is told to stop."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def __call__(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def stop(self) -> None:
        self._stop.set()


@dataclass(slots=True)
class _Holding:
    """The lease, and the slot where the store alone does not do."""

    lease: Lease
    slot: Slot | None
    run_id: str

    def beat(self, stop: threading.Event, on_lost: Callable[[LeaseLost], None], log: Log) -> None:
        """Renew until told to stop, or until the lease is lost."""
        while not stop.wait(self.lease.heartbeat):
            try:
                self.lease.renew()
            except LeaseLost as error:
                on_lost(error)
                return
            except StoreError as error:
                log.warning("a heartbeat of the lease did not reach the store: %s", error)
            self._renew_slot(log)

    def _renew_slot(self, log: Log) -> None:
        if self.slot is None:
            return
        try:
            if not renew_slot(self.slot):
                # The lease in the store still keeps others away.
                again = take_slot(self.slot.limit, self.run_id)
                self.slot = again if isinstance(again, Slot) else self.slot
        except (httpx.HTTPError, SlotUnavailable) as error:
            log.warning("the concurrency slot of this run was not renewed: %s", error)

    def let_go(self, log: Log) -> None:
        """End an orderly run's hold."""
        try:
            self.lease.release()
        except LeaseLost:
            pass
        except StoreError as error:
            log.warning("the lease could not be let go and will expire: %s", error)
        if self.slot is not None:
            try:
                release_slot(self.slot)
            except httpx.HTTPError as error:
                log.warning("the concurrency slot could not be let go: %s", error)


async def _taken(claim: Claim) -> _Holding:
    pause = _Pause()
    taking = asyncio.ensure_future(asyncio.to_thread(_take, claim, pause))
    try:
        return await asyncio.shield(taking)
    except asyncio.CancelledError:
        pause.stop()
        await asyncio.wait([taking])
        if not taking.cancelled() and taking.exception() is None:
            await asyncio.to_thread(taking.result().let_go, get_run_logger())
        raise


def _ended(holding: _Holding, beats: threading.Thread, log: Log) -> None:
    beats.join()
    holding.let_go(log)


def _take(claim: Claim, pause: _Pause) -> _Holding:
    file = lease_file(claim.destination, claim.program, claim.expires)
    if claim.conditional:
        lease = acquire(file, claim.owner, claim.expires, True, pause)
        return _Holding(lease, None, claim.owner.run_id)
    slot = _slot(claim, file, pause)
    try:
        lease = acquire(file, claim.owner, claim.expires, False, pause)
    except BaseException:
        with suppress(httpx.HTTPError):
            release_slot(slot)
        raise
    return _Holding(lease, slot, claim.owner.run_id)


def _slot(claim: Claim, file: LeaseFile, pause: _Pause) -> Slot:
    """The slot; raises OwnedElsewhere, UsageError."""
    name = limit_name(claim.destination, claim.program)
    watch = Watch(file)
    held_since: dict[str, float] = {}
    while True:
        with _neither(claim):
            slot = take_slot(name, claim.owner.run_id)
        if isinstance(slot, Slot):
            return slot
        seen, free = watch.look()
        since = held_since.setdefault(slot, clock())
        # Whoever has just got the slot writes the lease next: it is given time to do so.
        if free and clock() - since > _GRACE_SECONDS:
            drop_limit(slot)
        elif not free and clock() - since > 2 * claim.expires:
            raise owned(file, seen)
        pause(_POLL_SECONDS)


@contextmanager
def _neither(claim: Claim) -> Iterator[None]:
    try:
        yield
    except SlotUnavailable as error:
        raise UsageError(
            f"program {claim.program} at {claim.destination} cannot be owned by one run: the store "
            f"honours no conditional writes, and {error}; use a store that does, or a Prefect "
            "server with global concurrency limits"
        ) from error


async def _close(dead: LeaseRecord, mine: Owner, log: Log) -> None:
    """Give the runs of an owner that died their final state, where this server has them."""
    message = (
        f"{dead.owner} died: its last heartbeat was {dead.beaten}; found by flow run "
        f"{mine.run_name} ({mine.run_id})"
    )
    try:
        async with get_client() as client:
            closed = await _close_runs(client, UUID(dead.owner.run_id), mine, message)
    except (httpx.HTTPError, ValueError) as error:
        log.warning("%s; its flow runs could not be closed: %s", message, error)
        return
    log.warning("%s; %d of its flow runs are now Crashed", message, closed)


async def _close_runs(client: PrefectClient, run_id: UUID, mine: Owner, message: str) -> int:
    try:
        parent = await client.read_flow_run(run_id)
    except ObjectNotFound:
        return 0  # it reported to another server
    children = await _open_children(client, run_id)
    # The parent comes last: as long as it is open, somebody still has to look after it.
    runs = [*children, parent]
    await _close_tasks(client, [run.id for run in runs], message)
    left = [run for run in runs if _is_open(run) and str(run.id) != mine.run_id]
    for run in left:
        await client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return len(left)


async def _open_children(client: PrefectClient, run_id: UUID) -> list[FlowRun]:
    wanted = FlowRunFilter.model_validate(
        {"parent_flow_run_id": {"any_": [run_id]}, "state": {"type": {"any_": _OPEN}}}
    )
    found: list[FlowRun] = []
    while page := await client.read_flow_runs(
        flow_run_filter=wanted, limit=_PAGE, offset=len(found)
    ):
        found += page
    return found


async def _close_tasks(client: PrefectClient, runs: list[UUID], message: str) -> None:
    flow_runs = FlowRunFilter.model_validate({"id": {"any_": runs}})
    still_open = TaskRunFilter.model_validate({"state": {"type": {"any_": _OPEN}}})
    found = await client.read_task_runs(
        flow_run_filter=flow_runs, task_run_filter=still_open, limit=_PAGE
    )
    for run in found:
        await client.set_task_run_state(run.id, Crashed(message=message), force=True)


def _is_open(run: FlowRun) -> bool:
    return run.state is None or not run.state.is_final()
