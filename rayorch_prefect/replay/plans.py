"""A Plan as plain data: its structure and what the scheduler reads of its pools.

User code, constructor arguments and environments are not in it, and none of them is needed: the
stages of a Plan that was read back can not be run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

from rayorch_prefect.errors import UsageError
from rayorch_prefect.program.plan import (
    BroadcastOp,
    Call,
    CallOutputOp,
    CoalesceOp,
    Domain,
    ExpandOp,
    FilterOp,
    OnFailure,
    Plan,
    Pool,
    Port,
    Reduce,
    ReduceOp,
    SourceOp,
    Where,
)
from rayorch_prefect.program.targets import StageTarget

_OPS = {
    one.__name__: one
    for one in (SourceOp, CallOutputOp, ExpandOp, ReduceOp, FilterOp, CoalesceOp, BroadcastOp)
}
_LEFT_OUT = {"target", "args", "kwargs", "resources", "runtime_env", "label_selector", "node_setup"}
_TABLES = {"domains": Domain, "ports": Port, "calls": Call, "reduces": Reduce, "pools": Pool}


def plain_plan(plan: Plan) -> dict[str, Any]:
    """Data that JSON can hold."""
    return {field.name: _plain(getattr(plan, field.name)) for field in fields(Plan)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if type(value) in _OPS.values():
        names = [field.name for field in fields(type(value))]
        return {type(value).__name__: [_plain(getattr(value, name)) for name in names]}
    if isinstance(value, Where):
        return [value.file, value.line]
    if isinstance(value, Domain | Port | Call | Reduce | Pool):
        names = [field.name for field in fields(value) if field.name not in _LEFT_OUT]
        return {name: _plain(getattr(value, name)) for name in names}
    return value


def plan_from(data: Mapping[str, Any]) -> Plan:
    """The Plan that `plain_plan` was given, with stages that cannot be run.

    Raises UsageError for data that is no Plan of this version.
    """
    try:
        return Plan(**{name: _read(name, value) for name, value in data.items()})
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"the recording's Plan cannot be read ({error}); "
            "replay it with the version that made it"
        ) from None


def _read(name: str, value: Any) -> Any:
    table = _TABLES.get(name)
    if table is None:
        return _tuples(value)
    return tuple(table(**_row(table, one)) for one in value)


def _row(table: type, data: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: _field(name, value) for name, value in data.items()}
    if table is Pool:
        row |= {"target": StageTarget(_not_here), "args": (), "kwargs": {}}
    return row


def _field(name: str, value: Any) -> Any:
    if name == "where":
        return Where(*value)
    if name == "op":
        ((kind, held),) = value.items()
        return _OPS[kind](*map(_tuples, held))
    if name == "on_failure":
        return OnFailure(value)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _not_here(*_: object) -> NoReturn:
    raise UsageError("a Plan from a recording has no stages that can be run")
