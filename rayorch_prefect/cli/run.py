"""`rayorch-prefect run`: the nightly flow in this process, with its progress."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

# Prefect reads it when it is first imported: the runs' logs, with what tasks and flows raised, go
# to the server; lines here come from us.
os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")

from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_API_PORT
from prefect.utilities.urls import url_for

from rayorch_prefect.binding.block_references import names_block
from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.hooks import loaded_hooks
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.opening import loaded, order_of
from rayorch_prefect.binding.orders import Order
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.publishing import Shelf
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.binding.selection import select
from rayorch_prefect.binding.settings import settings_set
from rayorch_prefect.binding.states import RowsFailed
from rayorch_prefect.binding.stopping import BY_SIGNAL
from rayorch_prefect.binding.upload_tasks import loaded_task
from rayorch_prefect.cli.display import shown_progress
from rayorch_prefect.cli.exits import status_of_error
from rayorch_prefect.cli.places import prefect_api
from rayorch_prefect.cli.run_data import end_data, night_data, selection_data
from rayorch_prefect.cli.streams import kept_for_an_object
from rayorch_prefect.cli.table import selection_lines, summary_lines
from rayorch_prefect.errors import RayorchError
from rayorch_prefect.execution.cluster import disarm_abort
from rayorch_prefect.flows.nightly import nightly
from rayorch_prefect.program import Program

EXIT_TERMINATED = 128 + signal.SIGTERM
EXIT_CANCELLED = 128 + signal.SIGINT

# What a cancelled night waits for its task runs to be recorded by a server of its own.
_CANCELLED_RECORD_SECONDS = 3.0

_SETTINGS = (
    "microbatch_size",
    "max_active_microbatches",
    "failure_policy",
    "retry_failed",
    "upload_workers",
    "upload_group",
    "upload_runner",
    "ray_address",
    "limit",
    "only",
    "force",
    "allow_empty",
    "working_dir",
    "runtime_env",
    "upload_task",
    "lease_seconds",
    "upload_tries",
    "policy",
    "record",
    "parent_events",
    "stage_log_level",
)


def run(asked: argparse.Namespace) -> int:
    """Run the night that the arguments ask for; the exit status.

    Raises UsageError or ProgramError before anything is started, but for the Prefect API where a
    block is named; and what ended the flow where that was no source's end.
    """
    with kept_for_an_object(asked.json) as tell:
        end = _ended(asked)
        if asked.json:
            tell(json.dumps(end.told, indent=1))
    if end.error is not None:
        raise end.error
    return end.status


class _End(NamedTuple):
    """`told` is what --json says; `error` is what ended the flow where that was no source's end."""

    status: int
    told: Mapping[str, Any]
    error: RayorchError | None = None


def _ended(asked: argparse.Namespace) -> _End:
    named = any(map(names_block, (asked.source, asked.destination, _cluster(asked))))
    with _unwound_on_sigterm(), ExitStack() as opened:
        server = opened.enter_context(_api()) if named else None
        order, program = _checked(asked)
        if order.dry_run:
            return _selection_end(order, program, silent=asked.json)
        if not named:
            server = opened.enter_context(_api())
        return _run(asked, server)


def _checked(asked: argparse.Namespace) -> tuple[Order, Program]:
    order = order_of(
        asked.program, asked.source, asked.destination, dry_run=asked.dry_run, **_settings(asked)
    )
    program = loaded(order.program, order.working_dir)
    program.require_publishable()
    loaded_task(order.upload_task, order.working_dir)
    loaded_hooks(order.hooks, order.working_dir)
    return order, program


def _cluster(asked: argparse.Namespace) -> object:
    return asked.ray_address or settings_set().get("ray_address")


def _run(asked: argparse.Namespace, server: PrefectServer | None) -> _End:
    state, nights = asyncio.run(_night(asked))
    night = nights[-1] if nights else None
    if server is not None and night is not None:
        _wait_for_records(server, night)
    error = _not_of_a_source(state)
    if asked.summary is not None and night is not None:
        _write_summary(Path(asked.summary), night)
    _print_end(state, night, server, error)
    status = _status(state, night) if error is None else status_of_error(error)
    told = end_data(state, status)
    if night is not None:
        told |= night_data(night, _page(night.id, server), recorded=_took_sources(night, error))
    return _End(status, told, error)


def _status(state: State[Any], night: Night | None) -> int:
    if not state.is_cancelled():
        return 0 if state.is_completed() else 1
    reason = night.stop.reason if night else ""
    return EXIT_TERMINATED if reason == BY_SIGNAL[signal.SIGTERM] else EXIT_CANCELLED


def _write_summary(path: Path, night: Night) -> None:
    """The night has run: a file that cannot be written changes nothing about it."""
    try:
        path.write_text(night.summary().as_json(), encoding="utf-8")
    except OSError as error:
        print(f"rayorch-prefect run: the summary is not written: {error}", file=sys.stderr)


def _wait_for_records(server: PrefectServer, night: Night) -> None:
    if night.stop.reason:
        # Uploads that were cut off may never be recorded.
        wait_until_recorded(server, night, _CANCELLED_RECORD_SECONDS)
    elif not wait_until_recorded(server, night):
        print("not all task runs were recorded by the local Prefect server in time")


def _settings(asked: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in _SETTINGS} | {"hooks": dict(asked.hooks or ())}


def _selection_end(order: Order, program: Program, silent: bool) -> _End:
    """Say what a night would do with each source; nothing is started or written."""
    plan = program.plan
    shelf = Shelf(order.destination, plan.name, plan.fingerprint)
    selection = select(order, shelf)
    if not silent:
        print("\n".join(selection_lines(selection)))
    return _End(0, selection_data(selection))


@contextmanager
def _api() -> Iterator[PrefectServer | None]:
    """The Prefect API that the user set, else a server of our own for as long as we run."""
    if not PREFECT_API_URL.value():
        print("PREFECT_API_URL is not set: starting a local Prefect server", flush=True)
    with prefect_api() as server:
        if server is not None:
            print(f"Prefect UI     {server.address} as long as this runs", flush=True)
        yield server


async def _night(asked: argparse.Namespace) -> tuple[State[Any], list[Night]]:
    with watching() as nights:
        async with shown_progress(nights):
            state = await flow_state(
                nightly,
                asked.program,
                asked.source,
                asked.destination,
                **_settings(asked),
            )
        return state, nights


def _leave(*_: object) -> NoReturn:
    disarm_abort()
    raise SystemExit(EXIT_TERMINATED)


@contextmanager
def _unwound_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that neither actors nor a server outlive the process.

    While the night itself runs, both make it end as Cancelled instead.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except TerminationSignal:
        # Prefect's own handler raises it while a flow runs.
        raise SystemExit(EXIT_TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _not_of_a_source(state: State[Any]) -> RayorchError | None:
    """What ended the flow, unless it went to its end and failed by its sources."""
    if not state.is_failed():
        return None
    error = asyncio.run(state.aresult(raise_on_failure=False))
    if isinstance(error, RowsFailed):
        return None
    if isinstance(error, RayorchError):
        return error
    if isinstance(error, BaseException):
        # A defect: its place is needed, and Prefect's own log does not come here.
        traceback.print_exception(error, file=sys.stderr)
    return None


def _page(night_id: str, own: PrefectServer | None) -> str:
    """Where the run is to be seen: our own server is about to end, its database stays."""
    if own is None:
        return str(url_for("flow-run", night_id))
    return f"http://127.0.0.1:{PREFECT_SERVER_API_PORT.value()}/runs/flow-run/{night_id}"


def _took_sources(night: Night, error: RayorchError | None) -> bool:
    return bool(night.sources) or error is None


def _print_end(
    state: State[Any],
    night: Night | None,
    server: PrefectServer | None,
    error: RayorchError | None,
) -> None:
    if night is not None and _took_sources(night, error):
        for line in summary_lines(night.summary()):
            print(line)
        print(f"outputs        {night.order.destination}")
        if night.report:
            print(f"report         {night.report}")
        if night.left:
            print(f"left           {night.left}")
        again = "the local server ends now; to look again: prefect server start, then "
        print(f"Prefect UI     {again if server else ''}{_page(night.id, server)}")
    if error is None:
        print(f"{state.name}: {state.message}", flush=True)
