"""`rayorch-prefect run`: the nightly flow in this process, with plain progress lines."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

# Prefect reads it when it is first imported: the runs' logs go to the server, lines come from us.
os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "ERROR")

from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_API_URL
from prefect.utilities.urls import url_for

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.night import Night
from rayorch_prefect.binding.opening import loaded, order_of
from rayorch_prefect.binding.prefect_server import PrefectServer, using_api
from rayorch_prefect.binding.progress import progress_line, repeated
from rayorch_prefect.binding.recording import wait_until_recorded
from rayorch_prefect.binding.registry import watching
from rayorch_prefect.cli.table import summary_lines
from rayorch_prefect.flows.nightly import nightly

PROGRESS_SECONDS = 5.0
EXIT_TERMINATED = 128 + signal.SIGTERM

_SETTINGS = (
    "microbatch_size",
    "max_active_microbatches",
    "failure_policy",
    "retry_failed",
    "upload_workers",
)


def run(asked: argparse.Namespace) -> int:
    """Run the night that the arguments ask for; the exit status.

    Raises UsageError or ProgramError before anything is started.
    """
    order = order_of(asked.program, asked.source, asked.destination, **_settings(asked))
    loaded(order.program).require_publishable()
    with _unwound_on_sigterm(), _api() as server:
        state, nights = asyncio.run(_night(asked))
        night = nights[-1] if nights else None
        if server is not None and night is not None and not wait_until_recorded(server, night):
            print("not all task runs were recorded by the local Prefect server in time")
        _print_end(state, night, server)
    return 0 if state.is_completed() else 1


def _settings(asked: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(asked, name) for name in _SETTINGS}


@contextmanager
def _api() -> Iterator[PrefectServer | None]:
    """The Prefect API that the user set, else a server of our own for as long as we run."""
    if PREFECT_API_URL.value():
        yield None
        return
    print("PREFECT_API_URL is not set: starting a local Prefect server", flush=True)
    with PrefectServer() as server, using_api(server.api_url):
        yield server


async def _night(asked: argparse.Namespace) -> tuple[State[Any], list[Night]]:
    with watching() as nights:
        async with repeated(lambda: _print_progress(nights), PROGRESS_SECONDS):
            state = await flow_state(
                nightly,
                asked.program,
                asked.source,
                asked.destination,
                **_settings(asked),
            )
        return state, nights


def _leave(*_: object) -> NoReturn:
    raise SystemExit(EXIT_TERMINATED)


@contextmanager
def _unwound_on_sigterm() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does, so that neither actors nor a server outlive the process."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except TerminationSignal:
        # Prefect's own handler raises it while a flow runs.
        raise SystemExit(EXIT_TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_progress(nights: list[Night]) -> None:
    for night in nights:
        print(progress_line(night), flush=True)


def _print_end(state: State[Any], night: Night | None, server: PrefectServer | None) -> None:
    if night is not None:
        for line in summary_lines(night.summary()):
            print(line)
        print(f"outputs        {night.order.destination}")
        page = server.flow_run_page(night.id) if server else url_for("flow-run", night.id)
        print(f"Prefect UI     {page}")
    print(f"{state.name}: {state.message}", flush=True)
