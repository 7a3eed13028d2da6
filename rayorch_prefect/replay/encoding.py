"""Events and instructions as JSON: plain data in, the same events out, and no code is run.

An object is `{"Name": [its fields]}`, a tuple a list. Texts that a stage or a store has written go
through the redaction; everything else is numbers and names of the Plan.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeAlias, get_args

from rayorch_prefect.errors import UsageError
from rayorch_prefect.model.events import Event, Instruction, SourceAdmitted
from rayorch_prefect.model.members import KeptFailure
from rayorch_prefect.model.outcomes import Failure, Gap, Kind
from rayorch_prefect.model.reports import (
    AttemptFailed,
    ContractBreach,
    OutputReport,
    RowFailure,
    RowsReport,
)

Redact: TypeAlias = Callable[[str], str]

_PARTS = (OutputReport, RowsReport, AttemptFailed, ContractBreach, RowFailure)
_EVENTS = {one.__name__: one for one in (*get_args(Event), *_PARTS)}
_ONLY_OUT = (*get_args(Instruction), Failure, Gap, KeptFailure)

_Values: TypeAlias = Callable[[Any], Iterable[Any]]


def as_it_is(text: str) -> str:
    """The redaction of what has been redacted."""
    return text


def encoder(redact: Redact = as_it_is) -> Callable[[Any], str]:
    """What writes events and instructions (or lists of them) as JSON."""
    ways: dict[type, _Values] = {
        one: _values_of(one, redact) for one in (*_EVENTS.values(), *_ONLY_OUT)
    }

    def plain(value: Any) -> object:
        if isinstance(value, bytes | bytearray):
            return {"bytes": value.hex()}
        if isinstance(value, range):
            return list(value)
        way = ways[type(value)]
        return {type(value).__name__: list(way(value))}

    return json.JSONEncoder(default=plain, separators=(",", ":"), check_circular=False).encode


def _values_of(cls: type, redact: Redact) -> _Values:
    """The fields of an object in order, without what may be secret."""
    names = [field.name for field in fields(cls)]
    if len(names) == 1:
        one = attrgetter(*names)
        return lambda value: (one(value),)
    get: _Values = attrgetter(*names)
    texts = {place for place, name in enumerate(names) if name in _TEXTS}
    if cls is RowsReport:
        return lambda report: (
            report.rows,
            report.outputs,
            list(report.failures.items()),
            report.skipped,
        )
    if cls is SourceAdmitted:
        return lambda event: (*tuple(get(event))[:3], [(r, redact(t)) for r, t in event.invalid])
    if not texts:
        return get
    return lambda value: [
        redact(one) if place in texts else one for place, one in enumerate(get(value))
    ]


_TEXTS = {"message", "expected", "received", "type"}


def decode(value: Any) -> Any:
    """What `encoder` was given, from parsed JSON; only events and what they hold.

    Raises UsageError for an event that this version does not know.
    """
    if isinstance(value, list):
        return tuple(map(decode, value))
    if not isinstance(value, dict):
        return value
    ((name, held),) = value.items()
    if name == "bytes":
        return bytes.fromhex(held)
    cls = _EVENTS.get(name)
    try:
        if cls is None:
            raise TypeError("it is not known here")
        return cls(*_fitted(cls, [decode(one) for one in held]))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the recording has a {name} that cannot be read ({error}); "
            "replay it with the version that made it"
        ) from None


def _fitted(cls: type, held: list[Any]) -> list[Any]:
    if cls is RowFailure:
        held[0] = None if held[0] is None else Kind(held[0])
    elif cls is RowsReport:
        held[2] = dict(held[2])
    return held
