"""The same run again: a Scheduler is given a recording's events, one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rayorch_prefect.errors import RayorchError, UsageError
from rayorch_prefect.model.events import Event, Instruction, ParentCompleted
from rayorch_prefect.model.outcomes import ParentOutcome
from rayorch_prefect.replay.encoding import encoder
from rayorch_prefect.replay.recorder import crc_of, kinds_of
from rayorch_prefect.replay.recording import Recording, Step
from rayorch_prefect.replay.redaction import without_secrets
from rayorch_prefect.scheduler.core import Scheduler
from rayorch_prefect.scheduler.digest import state_digest
from rayorch_prefect.scheduler.policies import POLICIES, Policy
from rayorch_prefect.scheduler.telling import When, by_number, parsed_path, story_of


class ReplayDiffers(RayorchError):
    """A replay gave something else than the recorded run; the message names the first event."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The event that the Scheduler raised at, in a replay as in the recorded run."""

    step: Step
    error: Exception


class Replay:
    """A Scheduler that follows a recording. `number` steps have been done.

    Raises UsageError for a run under a policy of its own that is not handed over.
    """

    def __init__(self, recording: Recording, policy: Policy | None = None) -> None:
        self.recording = recording
        name = recording.options["policy"]
        if policy is None and name not in POLICIES:
            raise UsageError(
                f"{recording.path} is of a run under its own policy {name}; expected one like it: "
                "Replay(recording, policy=...)"
            )
        self.scheduler = Scheduler.with_options(recording.plan, recording.options, policy)
        self.number = 0
        self.refused: list[Refusal] = []
        self.outcomes: Counter[ParentOutcome] = Counter()
        self.times: list[float] = []
        """When each step was, in seconds since the run began."""
        self._steps = recording.steps()
        self._encode = encoder()
        self._crc = 0

    def run(self, until: int | None = None, *, check: bool = False) -> None:
        """Do the steps before number `until` (None: all).

        With `check`, raises ReplayDiffers at the first event whose instructions are not those that
        were recorded and, at the end, if the state is not the recorded one.
        """
        while until is None or self.number < until:
            step = next(self._steps, None)
            if step is None:
                if check:
                    self._check_state()
                return
            self._do(step, check)

    def _do(self, step: Step, check: bool) -> None:
        self.times.append(step.at_s)
        try:
            answer = self._answer(step.event)
        except Exception as error:
            if check and step.kinds is not None:
                raise ReplayDiffers(f"{_named(step)} gave {step.kinds}; now {error!r}") from error
            self.refused.append(Refusal(step, error))
        else:
            self._crc = crc_of(self._encode(answer), self._crc) if check else 0
            if check and self._crc != step.check:
                raise ReplayDiffers(_difference(step, answer))
            self.outcomes.update(one.outcome for one in answer if isinstance(one, ParentCompleted))
        self.number += 1

    def _answer(self, event: Event | None) -> list[Instruction]:
        return self.scheduler.start() if event is None else self.scheduler.handle(event)

    def _check_state(self) -> None:
        if self.recording.state not in (None, self.state()):
            raise ReplayDiffers(
                f"all {self.number} steps gave the recorded instructions, but the state at the end "
                f"is {self.state()} and was {self.recording.state}"
            )

    def state(self) -> str:
        """The digest of all that the Scheduler knows now."""
        return state_digest(self.scheduler)

    def rows_of(self, key: str) -> list[tuple[int, int]]:
        """(microbatch, row) of each parent with this source key, in the order they came."""
        shown = without_secrets(key)
        return [
            (number, row)
            for number, keys in self.recording.keys.items()
            for row, known in enumerate(keys)
            if known in (key, shown)
        ]

    def story(self, key: str, path: str | Sequence[int] = (), when: When | None = None) -> str:
        """What had become of an Entity by now, as `Engine.story` tells it.

        Raises UsageError for a key or path that is not there.
        """
        found = self.rows_of(key)
        if not found:
            raise UsageError(
                f"no source row with the key {key!r} has been admitted by step {self.number}; "
                f"expected a row's whole key{self._some_keys()}"
            )
        ordinals = parsed_path(path)
        told = (story_of(self.scheduler, *one, ordinals, when or self._when) for one in found)
        return "\n".join(f"{key}: {one}" for one in told)

    def _some_keys(self) -> str:
        keys = [key for keys in self.recording.keys.values() for key in keys][:3]
        return f", such as {', '.join(map(repr, keys))}" if keys else ""

    def _when(self, event: int) -> str:
        at_s = self.times[event]
        moment = datetime.fromtimestamp(self.recording.began + at_s)
        return f"{by_number(event)}, {moment:%H:%M:%S.%f}"[:-3] + f" (+{at_s:.3f} s)"


def _named(step: Step) -> str:
    return f"step {step.number} ({_short(str(step.event or 'the start'), 400)})"


def _difference(step: Step, answer: Sequence[Instruction]) -> str:
    was = "an error" if step.kinds is None else step.kinds or "nothing"
    now = kinds_of(answer) or "nothing"
    if was == now:
        return f"{_named(step)} gave {was} with other contents; now {_shown(answer)}"
    return f"{_named(step)} gave {was}; now {now}: {_shown(answer)}"


def _shown(answer: Sequence[Instruction]) -> str:
    return _short("; ".join(map(str, answer)), 2000)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
