"""Asking work to stop, and the signals that do."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeAlias

from prefect.utilities import engine as prefect_engine

from rayorch_prefect.execution.cluster import disarm_abort

Handler: TypeAlias = "Callable[[int, FrameType | None], Any] | int | None"

CANCELLED = "cancelled"
_THEIRS = "_prefect_sigterm_handler"
BY_SIGNAL = {
    signal.SIGTERM: f"{CANCELLED}: by SIGTERM",
    signal.SIGINT: f"{CANCELLED}: by Ctrl-C",
}


class Stop:
    """Whether work is to stop, and why: the first reason stands. Asked on the event loop."""

    def __init__(self) -> None:
        self.reason = ""
        self._asked = asyncio.Event()
        self._then: list[Callable[[], object]] = []

    def ask(self, reason: str) -> None:
        """Ask for it; only the first time counts."""
        if self.reason:
            return
        self.reason = reason
        self._asked.set()
        for act in self._then:
            act()

    def then(self, act: Callable[[], object]) -> None:
        """Call `act` when it is asked for; at once if it has been."""
        if self.reason:
            act()
        else:
            self._then.append(act)

    async def or_done(self, *tasks: asyncio.Future[Any], grace_s: float) -> bool:
        """Wait until all `tasks` are done, for at most `grace_s` once the stop is asked for.

        False if some are not done by then. Cancels nothing, also when it is cancelled itself.
        """
        asked = asyncio.ensure_future(self._asked.wait())
        left = set(tasks)
        try:
            while left and not asked.done():
                done, _ = await asyncio.wait({*left, asked}, return_when=asyncio.FIRST_COMPLETED)
                left -= done
        finally:
            asked.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=grace_s)
        return not left


class _Ears:
    """What hears the signals of this process while nights run in its main thread."""

    def __init__(self) -> None:
        self._tell: list[Callable[[str], object]] = []
        self._before: dict[signal.Signals, Handler] = {}
        self._theirs: Any = None
        # Prefect compares handlers by identity, and each look at a method is another object.
        self._hear = self._heard

    def add(self, tell: Callable[[str], object]) -> None:
        if not self._tell:
            self._before = {number: signal.getsignal(number) for number in BY_SIGNAL}
            # The engine of each child flow puts Prefect's handler back where another one is in
            # its place, and a runner tells what its SIGTERM means only where it is. So ours
            # stands for that handler.
            self._theirs = getattr(prefect_engine, _THEIRS, None)
            self._stand_for(self._hear)
            for number in BY_SIGNAL:
                signal.signal(number, self._hear)
        self._tell.append(tell)

    def remove(self, tell: Callable[[str], object]) -> None:
        self._tell.remove(tell)
        if not self._tell:
            self._stand_for(self._theirs)
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def _stand_for(self, handler: Any) -> None:
        if self._theirs is not None:
            setattr(prefect_engine, _THEIRS, handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        disarm_abort()
        heard = signal.Signals(number)
        if heard is signal.SIGINT:
            signal.signal(heard, self._before[heard])
        for tell in list(self._tell):
            tell(BY_SIGNAL[heard])


_EARS = _Ears()


@contextmanager
def heard_signals(ask: Callable[[str], None]) -> Iterator[None]:
    """While the body runs, SIGTERM and Ctrl-C ask, on the event loop.

    Prefect's own handler raises wherever the main thread happens to be: in a callback of the
    loop the signal would be lost, in Prefect's own code the run would end as Crashed. A second
    Ctrl-C does what it did before; further SIGTERMs change nothing. Outside of the main thread
    nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def tell(reason: str) -> None:
        with suppress(RuntimeError):  # the loop may be closed
            loop.call_soon_threadsafe(ask, reason)

    _EARS.add(tell)
    try:
        yield
    finally:
        _EARS.remove(tell)


def ignore_late_sigterm() -> None:
    """One SIGTERM from now on changes nothing: the run's final state is on its way.

    For an outermost flow run alone, at whose end Prefect gives the signal back.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGTERM)

    def ignore(number: int, frame: FrameType | None) -> None:
        disarm_abort()
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, ignore)
