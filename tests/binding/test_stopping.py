"""Asking to stop, and the signals that do."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.engine import capture_sigterm

from rayorch_prefect.binding.futures import flow_state
from rayorch_prefect.binding.prefect_server import PrefectServer
from rayorch_prefect.binding.stopping import BY_SIGNAL, Stop, heard_signals, ignore_late_sigterm


async def test_the_first_reason_stands_and_later_listeners_are_told_too() -> None:
    stop, told = Stop(), list[str]()
    stop.then(lambda: told.append(f"early: {stop.reason}"))

    stop.ask("first")
    stop.ask("second")
    stop.then(lambda: told.append(f"late: {stop.reason}"))

    assert told == ["early: first", "late: first"]


async def test_work_is_waited_for_and_after_a_stop_only_so_long() -> None:
    stop = Stop()
    quick = asyncio.create_task(asyncio.sleep(0.01))
    assert await stop.or_done(quick, grace_s=0)
    endless = asyncio.create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_later(0.05, stop.ask, "enough")

    assert not await stop.or_done(quick, endless, grace_s=0.05)

    assert not endless.cancelled()
    endless.cancel()


async def test_a_signal_in_a_callback_of_the_loop_is_heard() -> None:
    before = {number: signal.getsignal(number) for number in BY_SIGNAL}
    for number, reason in BY_SIGNAL.items():
        heard: asyncio.Queue[str] = asyncio.Queue()
        with heard_signals(heard.put_nowait):
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)
            assert await asyncio.wait_for(heard.get(), 5) == reason
    assert {number: signal.getsignal(number) for number in BY_SIGNAL} == before


@pytest.fixture
def harmless() -> Iterator[None]:
    """SIGTERM does not end the tests where nobody else hears it."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("harmless")
async def test_the_engine_of_a_child_flow_does_not_take_sigterm_back() -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    with capture_sigterm():
        theirs = signal.getsignal(signal.SIGTERM)
        with heard_signals(heard.put_nowait):
            with capture_sigterm():  # as the engine of each flow run does
                os.kill(os.getpid(), signal.SIGTERM)
            assert await asyncio.wait_for(heard.get(), 5) == BY_SIGNAL[signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is theirs


async def test_of_two_nights_both_hear() -> None:
    first: asyncio.Queue[str] = asyncio.Queue()
    second: asyncio.Queue[str] = asyncio.Queue()
    with heard_signals(second.put_nowait):
        with heard_signals(first.put_nowait):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(first.get(), 5)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(second.get(), 5)
        await asyncio.wait_for(second.get(), 5)


async def test_a_late_sigterm_changes_no_final_state(prefect_server: PrefectServer) -> None:
    before = signal.getsignal(signal.SIGTERM)

    @flow
    async def ends() -> State[str]:
        ignore_late_sigterm()
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)
        return Completed(name="AllDone")

    state = await flow_state(ends)

    assert state.name == "AllDone"
    assert signal.getsignal(signal.SIGTERM) is before
