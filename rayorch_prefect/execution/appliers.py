"""Actors that apply a given function to a parent's value, near the data.

Used for uploads: the bytes go from Ray's object store to the actor and never through the
driver's process. Belongs to the Engine's thread.
"""

from __future__ import annotations

import pickle
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import cloudpickle
import ray
from ray.exceptions import RayActorError

from rayorch_prefect.errors import EngineClosed
from rayorch_prefect.execution.calls import Calls
from rayorch_prefect.execution.losses import LostValues
from rayorch_prefect.execution.parent import Payload
from rayorch_prefect.execution.worker_actor import fetch, import_from

TRIES = 3

# (payload, what of it is lost, who gets the payload with its values made again, or None)
Renew: TypeAlias = Callable[[Payload, LostValues, Callable[[Payload | None], None]], None]


class ApplierActor:
    """Applies functions to values."""

    def __init__(self, path: Sequence[str]) -> None:
        import_from(path)

    def apply(
        self, function: Callable[..., Any], payload: Payload, args: tuple[Any, ...]
    ) -> tuple[Any, Exception | None]:
        """What `function(value, *args)` returns, or raises."""
        try:
            return function(payload.value(fetch), *args), None
        except Exception as error:
            return None, sendable(error)


def sendable(error: Exception) -> Exception:
    """The error with its traceback as a note; one that cannot be pickled as a RuntimeError."""
    where = "".join(traceback.format_exception(error))
    try:
        found: Exception = pickle.loads(cloudpickle.dumps(error))
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
    found.add_note(where)
    return found


@dataclass(slots=True, eq=False)
class Application:
    """One function to apply, and who waits for it."""

    function: Callable[..., Any]
    payload: Payload
    args: tuple[Any, ...]
    future: Future[Any]
    tries: int = 0
    actor: Any = None
    cut_off: bool = False


class Appliers:
    """A pool of `size` applier actors, started when first needed.

    A call whose actor dies is tried again on a new one, one whose value has died with its node
    once the value is made again: `TRIES` times in all; then its future has the error.
    `calls` gets those to the actors, `renew` is the driver's.
    `lost` counts actors that died, `again` calls that were tried again for it.
    """

    def __init__(
        self,
        size: int,
        path: Sequence[str],
        calls: Calls,
        renew: Renew,
        num_cpus: float = 0.0,
        runtime_env: Mapping[str, Any] | None = None,
    ) -> None:
        self.lost = 0
        self.again = 0
        self._size = size
        self._path = list(path)
        self._calls = calls
        self._renew = renew
        self._class = ray.remote(ApplierActor).options(
            num_cpus=num_cpus,
            max_restarts=0,
            max_task_retries=0,
            runtime_env=dict(runtime_env or {}) or None,
        )
        self._actors: list[Any] = []
        self._idle: deque[Any] = deque()
        self._waiting: deque[Application] = deque()
        self._running: list[Application] = []
        self._renewing: list[Application] = []

    def apply(self, application: Application) -> None:
        """Queue an application."""
        self._waiting.append(application)
        self._send()

    def _send(self) -> None:
        while self._waiting:
            if not self._idle and len(self._actors) < self._size:
                self._idle.append(self._started())
            if not self._idle:
                return
            self._run(self._idle.popleft(), self._waiting.popleft())

    def _started(self) -> Any:
        actor = self._class.remote(self._path)
        self._actors.append(actor)
        return actor

    def _run(self, actor: Any, application: Application) -> None:
        # From here on its owner cannot cancel it, so that a result can always be set.
        if not application.tries and not application.future.set_running_or_notify_cancel():
            self._idle.append(actor)
            return
        application.tries += 1
        application.actor = actor
        try:
            ref = actor.apply.remote(application.function, application.payload, application.args)
        except Exception as error:
            self._idle.append(actor)
            application.future.set_exception(error)
            return
        self._running.append(application)
        self._calls.expect(ref, partial(self._ended, actor, application))

    def _ended(
        self, actor: Any, application: Application, given: Any, died: BaseException | None
    ) -> None:
        self._running.remove(application)
        if isinstance(died, RayActorError):
            self._actors.remove(actor)
            self.lost += not application.cut_off
        else:
            self._idle.append(actor)
        lost = died or given[1]
        spent = application.cut_off or application.tries == TRIES
        if spent or not isinstance(lost, RayActorError | LostValues):
            _settle(application.future, given, died)
        elif isinstance(lost, LostValues):
            self._when_made_again(application, lost)
        else:
            self.again += 1
            # Not on an idle one: where a node died, all that idled there are dead as well.
            self._run(self._started(), application)
        self._send()

    def cut_off(self, futures: Sequence[Future[Any]]) -> None:
        """End these applications: those that run with their actors, which are replaced."""
        for future in futures:
            future.cancel()
        for application in self._running:
            if application.future in futures:
                application.cut_off = True
                ray.kill(application.actor)
        for application in [each for each in self._renewing if each.future in futures]:
            self._renewing.remove(application)
            application.future.set_exception(EngineClosed("cut off while its value was made again"))

    def _when_made_again(self, application: Application, lost: LostValues) -> None:
        """Try again once the value is there again."""
        self._renewing.append(application)

        def then(payload: Payload | None) -> None:
            if application not in self._renewing:
                return  # ended meanwhile
            self._renewing.remove(application)
            if payload is None:
                application.future.set_exception(lost)
            else:
                application.payload = payload
                self._waiting.appendleft(application)
                self._send()

        self._renew(application.payload, lost, then)

    def close(self) -> None:
        """End all actors; applications that have not ended get EngineClosed."""
        left = EngineClosed("the Engine was left before this was done")
        for application in (*self._running, *self._renewing, *self._waiting):
            if application.tries or application.future.set_running_or_notify_cancel():
                application.future.set_exception(left)
        self._running.clear()
        self._renewing.clear()
        self._waiting.clear()
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        self._idle.clear()


def _settle(waiting: Future[Any], given: Any, error: BaseException | None) -> None:
    # With an error at once the actor died too often, or what came back could not be pickled.
    result, error = given if error is None else (None, error)
    if error is None:
        waiting.set_result(result)
    else:
        waiting.set_exception(error)
