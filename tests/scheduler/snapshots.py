"""A deep, comparable picture of a Scheduler's state."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.program.plan import Plan
from rayorch_prefect.scheduler.wiring import Wiring

_PLAIN = (int, float, str, bytes, bytearray, type(None))


def snapshot(value: Any, seen: frozenset[int] = frozenset()) -> object:
    """Nested tuples of everything that is reachable, but for the immutable Plan and Wiring."""
    if isinstance(value, _PLAIN):
        return bytes(value) if isinstance(value, bytearray) else value
    if callable(value) or isinstance(value, (Plan, Wiring)) or id(value) in seen:
        return None
    seen |= {id(value)}
    if isinstance(value, dict):
        return tuple((snapshot(key, seen), snapshot(one, seen)) for key, one in value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(repr(one) for one in value))
    if hasattr(value, "__iter__"):
        return tuple(snapshot(one, seen) for one in value)
    names = [*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", {})]
    return tuple((name, snapshot(getattr(value, name), seen)) for name in names)
