"""All run state as one number that is the same in every process."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from hashlib import blake2b
from itertools import count
from typing import Any

from rayorch_prefect.program.plan import Call, Plan, Pool
from rayorch_prefect.scheduler.wiring import Wiring

_LENGTH = 16

# Immutable: no state, and a Pool holds user code.
_FIXED = (Plan, Wiring, Pool, Call)


def state_digest(state: object, text: Callable[[str], str] = str) -> str:
    """A digest in hexadecimal of everything that is reachable from `state`, but for the immutable
    Plan and what is made of it, and for functions. `text` is applied to every str, as to redact it.
    """
    found = blake2b(digest_size=_LENGTH)
    for piece in _pieces(state, text, set()):
        found.update(piece)
        found.update(b"\n")
    return found.hexdigest()


def _pieces(value: Any, text: Callable[[str], str], seen: set[int]) -> Iterator[bytes]:
    if isinstance(value, Enum):
        yield value.name.encode()
    elif isinstance(value, str):
        yield text(value).encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, array):
        yield value.tobytes()
    elif value is None or isinstance(value, int | float | range | count):
        yield repr(value).encode()
    elif not (isinstance(value, _FIXED) or callable(value) or id(value) in seen):
        if not _is_frozen(value):
            seen.add(id(value))
        for part in _parts(value):
            yield from _pieces(part, text, seen)
    yield type(value).__name__.encode()


def _is_frozen(value: Any) -> bool:
    """Whether it does not matter if two places hold the same object or equal ones."""
    params = getattr(value, "__dataclass_params__", None)
    return isinstance(value, tuple) or (params is not None and params.frozen)


def _parts(value: Any) -> Iterator[Any]:
    """What an object holds, in an order that is a part of the state or does not matter."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield key
            yield held
    elif isinstance(value, Set):
        yield from sorted(value, key=repr)
    elif hasattr(value, "__iter__"):
        yield from value
    else:
        for name in (*_slots(type(value)), *getattr(value, "__dict__", ())):
            yield name.encode()  # not a text of the run, so never redacted
            yield getattr(value, name)


def _slots(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        slots = getattr(base, "__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
